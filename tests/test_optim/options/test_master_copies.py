"""float32 master copies: the rule works on them, the variable is their rounding, wherever and however saved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.errors import HyperparameterError, UnsupportedError
from tests.helpers.breadth import broad
from tests.helpers.dtensor_asserts import layout_of, value_of
from tests.test_optim.cases import FIRST, RATE, WHOLE, Case, is_one_of_few, marked
from tests.test_optim.support import Place, executor_for, put, put_gradients, snapshot, start_values, stepper, variable

LOW = (tf.bfloat16, tf.float16)
STEPS = 6


def _rounded(values: dict[str, Any], dtype: Any) -> dict[str, np.ndarray]:
    return {name: tf.cast(value, dtype).numpy().astype(np.float64) for name, value in values.items()}


def _gradients(call: int, dtype: Any) -> dict[str, np.ndarray]:
    random = np.random.default_rng(50 + call)
    return _rounded({n: random.normal(size=v.shape) for n, v in start_values().items()}, dtype)


def _error(variables: dict[str, Any], reference: Any, start: dict[str, Any]) -> float:
    """The largest deviation from the float64 reference, as a share of what float32 variables may deviate.

    That is ten roundings of the values and, for TensorFlow's fused Adam kernel, 1e-5 of the way, as in
    `test_float32_follows_the_reference`.
    """
    shares = []
    for name, var in variables.items():
        goal = reference.values[name]
        moved = np.max(np.abs(goal - start[name]))
        allowed = 10 * float(np.finfo(np.float32).eps) * (np.max(np.abs(goal)) + moved) + 1e-5 * moved
        shares.append(np.max(np.abs(value_of(var).astype(np.float64) - goal)) / allowed)
    return float(max(shares))


@pytest.mark.parametrize(
    ("case", "mode", "dtype"),
    marked(
        [(c, m, d) for c in FIRST.values() for m in c.modes if m != "portable" or c.optimizer == "SGD" for d in LOW],
        lambda case, mode, dtype: is_one_of_few(case) and (dtype == tf.bfloat16 or mode == "native"),
    ),
)
@pytest.mark.quick(2)
def test_the_copies_follow_the_reference(case: Case, mode: str, dtype: Any, request: Any) -> None:
    """As closely as float32 variables do."""
    place = Place.named("mixed", request)
    start = _rounded(start_values(), dtype)
    reference = case.reference(start)
    variables = place.variables(start, dtype)
    optimizer = case.make(master_copies=True, executor=executor_for(mode))
    step = stepper(optimizer, mode)
    for call in range(STEPS):
        step(put_gradients(_gradients(call, dtype), variables))
        reference.apply(_gradients(call, dtype))
    masters = {name: optimizer.get_slot(var, "master") for name, var in variables.items()}
    assert _error(masters, reference, start) < 1.0
    for name, var in variables.items():
        assert var.dtype == dtype
        np.testing.assert_array_equal(value_of(var), tf.cast(value_of(masters[name]), dtype).numpy())
        for slot in reference.slots[name]:
            assert optimizer.get_slot(var, slot).dtype == tf.float32


@pytest.mark.parametrize(
    "case", marked([(c,) for c in FIRST.values()], lambda c: is_one_of_few(c) or c.optimizer in WHOLE)
)
@pytest.mark.quick(4)
def test_without_copies_rounding_is_a_hundred_times_as_large(case: Case, devices: list[str]) -> None:
    start = _rounded(start_values(), tf.bfloat16)
    errors = []
    for copies in (True, False):
        reference = case.reference(start)
        variables = Place(None, {}).variables(start, tf.bfloat16)
        optimizer = case.make(master_copies=copies)
        for call in range(STEPS):
            optimizer.apply_gradients(put_gradients(_gradients(call, tf.bfloat16), variables))
            reference.apply(_gradients(call, tf.bfloat16))
        kept = {n: optimizer.get_slot(v, "master") if copies else v for n, v in variables.items()}
        errors.append(_error(kept, reference, start))
    assert errors[0] < 1.0
    assert errors[1] > 100.0


@pytest.mark.parametrize("mode", ["local", "portable", "function", "native"])
def test_small_steps_add_up_only_with_copies(mode: str, mesh_2: Any) -> None:
    """bfloat16 has a spacing of 2^-7 above 1: steps of 2^-10 are lost one by one, and 64 of them are 2^-4."""
    layout = dtensor.Layout(["x"], mesh_2)
    for copies, expected in ((False, 1.0), (True, 1.0 - 2.0**-4)):
        var = variable(np.ones(4), layout, "w", tf.bfloat16)
        optimizer = optim.SGD(2.0**-10, master_copies=copies, executor=executor_for(mode))
        step = stepper(optimizer, mode)
        for _ in range(64):
            step([(put(np.ones(4), layout, tf.bfloat16), var)])
        np.testing.assert_array_equal(value_of(var).astype(np.float64), expected)


EVERYTHING = {
    "clipvalue": 0.5,
    "global_clipnorm": 2.0,
    "weight_decay": 0.1,
    "use_ema": True,
    "ema_momentum": 0.7,
    "ema_overwrite_frequency": 2,
    "gradient_accumulation_steps": 2,
}


@pytest.mark.breadth
@pytest.mark.parametrize("placement", [broad("like_variable"), "zero1"])
@pytest.mark.parametrize("mode", ["local", broad("portable"), "function", "native"])
def test_with_every_option(mode: str, placement: str, mesh_2x2: Any) -> None:
    from tests.reference.adam import Adam
    from tests.reference.common import Options, Training

    place = Place(mesh_2x2, {"table": ["model", "unsharded"]})
    start = _rounded(start_values(), tf.bfloat16)
    reference = Training(Adam(), lambda _: RATE, start, Options(**EVERYTHING))
    variables = place.variables(start, tf.bfloat16)
    executor = executor_for(mode) if placement == "like_variable" else "auto"
    optimizer = optim.Adam(
        RATE, master_copies=True, slot_placement=placement, executor=executor, loss_scale=8.0, **EVERYTHING
    )
    step = stepper(optimizer, mode)
    for call in range(8):
        values = _gradients(call, tf.bfloat16)
        step(put_gradients({name: 8.0 * value for name, value in values.items()}, variables))
        reference.apply(values)
    masters = {name: optimizer.get_slot(var, "master") for name, var in variables.items()}
    assert _error(masters, reference, start) < 1.0
    for name, var in variables.items():
        average = optimizer.get_slot(var, "average")
        np.testing.assert_allclose(value_of(average), reference.averages[name], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(value_of(var), tf.cast(value_of(masters[name]), tf.bfloat16).numpy())
        if placement == "zero1" and name == "kernel":
            assert sorted(masters[name].layout.sharding_specs) == ["batch", "model"]
    # Averages in and out: the copy, not the rounding, is what comes back.
    before = snapshot([*variables.values(), *optimizer.variables])
    with optimizer.averages_swapped():
        for var in variables.values():
            mean = value_of(optimizer.get_slot(var, "master"))
            np.testing.assert_array_equal(value_of(var), tf.cast(mean, tf.bfloat16).numpy())
    assert snapshot([*variables.values(), *optimizer.variables]) == before
    optimizer.finalize_variable_values(list(variables.values()))
    for var in variables.values():
        np.testing.assert_array_equal(
            value_of(optimizer.get_slot(var, "average")), value_of(optimizer.get_slot(var, "master"))
        )


def test_float32_and_float64_are_as_they_were(devices: list[str]) -> None:
    for dtype in (tf.float32, tf.float64):
        ends = []
        for copies in (False, True):
            var = tf.Variable([1.0, 2.0], dtype=dtype)
            optimizer = optim.Adam(0.1, master_copies=copies)
            optimizer.apply_gradients([(tf.ones(2, dtype), var)])
            assert optimizer.slot_names == ["m", "v"]
            ends.append(var.numpy())
        np.testing.assert_array_equal(ends[0], ends[1])


@pytest.mark.parametrize("target", ["plain", broad("rows"), "zero1"])
@pytest.mark.quick(1)
def test_a_checkpoint_keeps_the_copies(target: str, request: Any, tmp_path: Any) -> None:
    variables = Place.named("mixed", request).variables(start_values(), tf.bfloat16)
    optimizer = optim.Adam(0.01, master_copies=True)
    for call in range(2):
        optimizer.apply_gradients(put_gradients(_gradients(call, tf.bfloat16), variables))
    optim.save_checkpoint(tmp_path / "c", optimizer, variables)
    assert set(optim.describe_checkpoint(tmp_path / "c").slots) == {"m", "v", "master"}

    others = Place.named("mixed" if target == "zero1" else target, request).variables(start_values(3), tf.bfloat16)
    options = {"slot_placement": "zero1"} if target == "zero1" else {}
    resumed = optim.load_checkpoint(tmp_path / "c", others, **options)
    for one, two in ((optimizer, variables), (resumed, others)):
        one.apply_gradients(put_gradients(_gradients(5, tf.bfloat16), two))
    for name in variables:
        for slot in ("m", "v", "master"):
            mine, theirs = optimizer.get_slot(variables[name], slot), resumed.get_slot(others[name], slot)
            np.testing.assert_array_equal(value_of(mine), value_of(theirs))
        np.testing.assert_array_equal(value_of(variables[name]), value_of(others[name]))


@pytest.mark.parametrize("restore", [True, False])
@pytest.mark.quick(1)
def test_a_checkpoint_without_copies_gets_them(restore: bool, request: Any, tmp_path: Any) -> None:
    variables = Place.named("mixed", request).variables(start_values(), tf.bfloat16)
    optimizer = optim.Adam(0.01)
    optimizer.apply_gradients(put_gradients(_gradients(0, tf.bfloat16), variables))
    optim.save_checkpoint(tmp_path / "c", optimizer, variables)
    others = Place.named("rows", request).variables(start_values(3), tf.bfloat16)
    own = snapshot(others.values())
    resumed = optim.load_checkpoint(tmp_path / "c", others, master_copies=True, restore_variables=restore)
    assert (snapshot(others.values()) == own) is not restore
    for name, var in others.items():
        np.testing.assert_array_equal(value_of(resumed.get_slot(var, "master")), value_of(var).astype(np.float32))
        widened = value_of(optimizer.get_slot(variables[name], "v")).astype(np.float32)
        np.testing.assert_array_equal(value_of(resumed.get_slot(var, "v")), widened)
    assert resumed.get_config()["master_copies"] is True


def test_the_copies_win_over_a_variable_changed_outside_until_refreshed(devices: list[str], tmp_path: Any) -> None:
    var, other = (tf.Variable([1.0], dtype=tf.bfloat16, name=name) for name in ("w", "other"))
    optimizer = optim.SGD(0.5, master_copies=True)
    gradient = tf.constant([1.0], tf.bfloat16)
    optimizer.apply_gradients([(gradient, var), (gradient, other)])
    optim.save_checkpoint(tmp_path / "c", optimizer, [var, other])
    var.assign([8.0])
    optimizer.apply_gradients([(gradient, var)])
    assert var.numpy() == 0.0  # 1 − 2·0.5: the copy did not know
    for item in (var, other):
        item.assign([8.0])
    optimizer.refresh_master_copies([var])
    optimizer.apply_gradients([(gradient, var), (gradient, other)])
    assert var.numpy() == 7.5
    assert other.numpy() == 0.0
    other.assign([4.0])
    optimizer.refresh_master_copies()
    assert optimizer.get_slot(other, "master").numpy() == [4.0]

    fresh = [tf.Variable([8.0], dtype=tf.bfloat16, name=name) for name in ("w", "other")]
    resumed = optim.load_checkpoint(tmp_path / "c", fresh, restore_variables=False)
    assert fresh[0].numpy() == 8.0  # left alone, but the next step starts from the stored copy
    resumed.apply_gradients([(gradient, fresh[0])])
    assert fresh[0].numpy() == 0.0


def test_a_constraint_holds_for_the_copy(devices: list[str]) -> None:
    var = tf.Variable([0.25], dtype=tf.float16, constraint=tf.nn.relu)
    optimizer = optim.SGD(1.0, master_copies=True)
    optimizer.apply_gradients([(tf.constant([1.0], tf.float16), var)])
    assert var.numpy() == optimizer.get_slot(var, "master").numpy() == [0.0]


def test_where_there_are_none(devices: list[str]) -> None:
    with pytest.raises(UnsupportedError, match="master_copies=True"):
        optim.SGD(0.1).refresh_master_copies()
    with pytest.raises(HyperparameterError, match="master_copies"):
        optim.SGD(0.1, master_copies=1)

    class Own(optim.SGD):
        def update_step(self, gradient: Any, variable: Any) -> None:
            raise AssertionError

    with pytest.raises(HyperparameterError, match="own update_step"):
        Own(0.1, master_copies=True)


@pytest.mark.parametrize("mode", ["native"])
def test_the_native_kernel_updates_the_copies(mode: str, mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    for dtype in LOW:
        var = variable(np.ones(4), layout, "w", dtype)
        optimizer = optim.Adam(0.1, master_copies=True)
        optimizer.apply_gradients([(put(np.ones(4), layout, dtype), var)])
        assert set(optimizer.executor_report().kernels.values()) == {"native"}
        assert layout_of(optimizer.get_slot(var, "master")) == layout
        assert optimizer.memory_report().slots["master"] == {"CPU:0": 8, "CPU:1": 8}
