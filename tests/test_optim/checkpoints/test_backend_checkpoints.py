"""Checkpoints go from TensorFlow to Keras on JAX and PyTorch and back, between meshes and none."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from optim.bytes.bundle import BundleReader
from optim.slot_layout import slot_key
from tests.helpers.breadth import broad
from tests.helpers.dtensor_asserts import assert_dtensor_equal, layout_of
from tests.test_optim.cases import ROWS, Case
from tests.test_optim.keras.test_backends import program
from tests.test_optim.support import Place, gradient_values, put_gradients, start_values

EIGHT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
CASES = {case.name: case for case in ROWS}
CALLS = 4
"""Before, on, and after the other backend; a window of three ends inside each."""


def stepped(optimizer: Any, variables: dict[str, Any], reference: Any, first: int) -> None:
    for call in range(first, first + CALLS):
        optimizer.apply_gradients(put_gradients(gradient_values(call), variables))
        reference.apply(gradient_values(call))


def there_and_back(
    case: Case, place: Place, folder: Path, backend: str, *how: str, **options: Any
) -> tuple[Any, dict[str, Any], list[dict[str, Any]]]:
    """CALLS on TensorFlow, as many on a backend and on TensorFlow again, compared with the float64 reference."""
    arguments = {"JAX_ENABLE_X64": "1", **(EIGHT if how else {})}
    variables, reference = place.variables(start_values()), case.reference(start_values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        optimizer = case.make(**options)
        stepped(optimizer, variables, reference, 0)
        optim.save_checkpoint(folder / "there", optimizer, variables)
        words = (str(folder / "there"), str(folder / "back"), str(CALLS), str(CALLS), "float64")
        printed = program(backend, "resume_program", *words, *how, package="tests.test_optim.checkpoints", **arguments)
        for call in range(CALLS, 2 * CALLS):
            reference.apply(gradient_values(call))
        again = place.variables(start_values(9))
        resumed = optim.load_checkpoint(folder / "back", again)
        assert int(resumed.iterations) == reference.iterations
        assert resumed.get_config() == {**optimizer.get_config(), **({"slot_placement": "zero1"} if how else {})}
        stepped(resumed, again, reference, 2 * CALLS)
    for name, variable in again.items():
        assert_dtensor_equal(variable, reference.values[name], layout_of(variable), rtol=1e-12, atol=1e-14, what=name)
    return resumed, again, printed


@pytest.mark.parametrize("backend", ["jax", broad("torch")])
@pytest.mark.parametrize("name", ["adadelta+accumulation", *map(broad, ("adam-amsgrad", "nadam"))])
def test_training_goes_to_another_backend_and_back(name: str, backend: str, request: Any, tmp_path: Path) -> None:
    there_and_back(CASES[name], Place.named("plain", request), tmp_path, backend)


@pytest.mark.breadth
def test_training_goes_from_a_dtensor_mesh_to_one_of_jax_and_back(request: Any, tmp_path: Path) -> None:
    """From 2x2 to 4x2, where ZeRO-1 divides a slot by as many of the eight devices as its shape allows."""
    case = CASES["adam-amsgrad"]
    place = Place.named("mixed", request)
    resumed, variables, printed = there_and_back(case, place, tmp_path, "jax", "4x2", "zero1", slot_placement="zero1")
    assert resumed.get_slot(variables["bias"], "m").layout.num_shards(0) == 2
    sizes = {"kernel": 6 * 4 // 2, "table": 8 * 3 // 8, "bias": 4 // 4, "scale": 1, "odd": 3 * 5}
    assert set(printed[0]["bytes"].values()) == {3 * 8 * sum(sizes.values())}


@pytest.mark.breadth
def test_divided_arrays_are_stored_in_slices(request: Any, tmp_path: Path) -> None:
    """`tf.train.Checkpoint` and TensorFlow's own reader read them, too."""
    case = CASES["adam-amsgrad"]
    _, variables, _ = there_and_back(case, Place.named("plain", request), tmp_path, "jax", "4x2", "zero1")
    prefix = tf.train.latest_checkpoint(str(tmp_path / "back"))
    own = BundleReader(prefix)
    key = slot_key("m", "table")
    assert len(own[key].slices) == 8
    theirs = tf.train.load_checkpoint(prefix)
    for name in variables:
        key = slot_key("vhat", name)
        np.testing.assert_array_equal(theirs.get_tensor(key), own.load(key))
    fresh = case.make()
    fresh.build(list(variables.values()))
    tf.train.Checkpoint(optimizer=fresh).restore(prefix).assert_existing_objects_matched().expect_partial()
    for name, variable in variables.items():
        np.testing.assert_array_equal(fresh.get_slot(variable, "v"), own.load(slot_key("v", name)))
    assert int(fresh.iterations) == 2 * CALLS
