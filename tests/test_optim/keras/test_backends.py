"""`for_keras` with Keras on JAX and PyTorch, each in a process of its own, as a backend is chosen once."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import optim
from tests.helpers.breadth import broad
from tests.helpers.once import made_once, shared_folder
from tests.helpers.timing import HANGS
from tests.places import ROOT
from tests.test_optim.cases import ROWS
from tests.test_optim.keras.check_runner import LONG


def checks_of(module: str) -> list[Any]:
    """The names of the checks of a program of this folder; `make test` leaves the long ones out."""
    lines = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8").splitlines()
    names = [line.split("(")[0].removeprefix("def ") for line in lines if line.startswith("def check_")]
    return [broad(name) if name in LONG else name for name in names]


def which(check: str) -> str:
    """The part of a program's checks that has this one, as `CHECKS` names it."""
    return "long" if check in LONG else "quick"


QUICK = ["adam-amsgrad+everything"]
WAYS = {"jax": ("eager", "compiled"), "torch": ("eager", "without the kernel")}


def program(
    backend: str, module: str, *arguments: str, package: str = "tests.test_optim.keras", **environment: str
) -> list[dict[str, Any]]:
    """What a program of a folder of tests prints on a backend; one process of the test run starts it."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed (pip install {backend})")
    typed = json.dumps([backend, module, *arguments, package, environment])
    return made_once(
        f"{backend}-{module}-{hashlib.sha256(typed.encode()).hexdigest()[:16]}",
        lambda: _printed(backend, module, arguments, package, environment),
    )


def _printed(
    backend: str, module: str, arguments: Sequence[str], package: str, environment: Mapping[str, str]
) -> list[dict[str, Any]]:
    variables = {**os.environ, "KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": "", **environment}
    done = subprocess.run(
        [sys.executable, "-m", f"{package}.{module}", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=variables,
        timeout=1800,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, f"{found[-1:]}\n{done.stderr[-3000:]}"
    return found


@functools.cache
def errors(backend: str, dtype: str, *names: str) -> dict[tuple[str, str], dict[str, Any]]:
    enabled = {"JAX_ENABLE_X64": "1" if dtype == "float64" else "0"}
    return {(each["case"], each["way"]): each for each in program(backend, "on_backend", dtype, *names, **enabled)}


def _assert_all_agree(found: dict[tuple[str, str], dict[str, Any]], names: list[str], backend: str) -> None:
    assert set(found) == {(name, way) for name in names for way in WAYS[backend]}
    wrong = []
    for key, each in found.items():
        if "refused" in each:
            assert (backend, key[0]) == ("jax", "adadelta+callable"), each
        elif each["variable"] > 1 or each["slot"] > 1:
            wrong.append(each)
    assert not wrong


@pytest.mark.parametrize("backend", WAYS)
def test_steps_equal_the_reference(backend: str) -> None:
    """In float32, where JAX has no float64 but for scalars."""
    _assert_all_agree(errors(backend, "float32", *QUICK), QUICK, backend)


@pytest.mark.breadth
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backend", WAYS)
def test_steps_of_every_row_equal_the_reference(backend: str, dtype: str) -> None:
    _assert_all_agree(errors(backend, dtype), [case.name for case in ROWS], backend)


@functools.cache
def folder(backend: str) -> Path:
    place = shared_folder() / backend.replace(" ", "-")
    place.mkdir(exist_ok=True)
    return place


@functools.cache
def results(backend: str, checks: str = "quick") -> dict[str, str]:
    found = program(backend, "backend_checks", str(folder(backend)), CHECKS=checks)
    return {each["check"]: each["error"] for each in found}


@pytest.mark.parametrize("backend", WAYS)
@pytest.mark.parametrize("check", checks_of("backend_checks"))
def test_fit(check: str, backend: str) -> None:
    """Each check of `backend_checks.py`, without TensorFlow."""
    assert not results(backend, which(check))[check]


@functools.cache
def group_results(backend: str, checks: str = "quick") -> dict[str, str]:
    found = program(backend, "group_checks", str(folder(f"{backend} groups")), CHECKS=checks)
    return {each["check"]: each["error"] for each in found}


@pytest.mark.parametrize("backend", ["jax", broad("torch")])
@pytest.mark.parametrize("check", checks_of("group_checks"))
def test_groups(check: str, backend: str) -> None:
    """Each check of `group_checks.py`."""
    assert not group_results(backend, which(check))[check]


@pytest.mark.parametrize("backend", ["jax", broad("torch")])
def test_groups_of_another_backend_continue_here(backend: str) -> None:
    import tensorflow as tf

    from tests.test_optim.keras.group_checks import SHAPES

    assert not group_results(backend)["check_a_checkpoint_continues_on_tensorflow"]
    place = folder(f"{backend} groups")
    of = {name: tf.Variable(tf.zeros(shape), name=name) for name, shape in SHAPES.items()}
    optimizer = optim.load_checkpoint(place / "checkpoint", of)
    for call in range(3, 6):
        draws = np.random.default_rng(call + 1)
        given = {name: tf.constant(draws.normal(size=shape).astype("float32")) for name, shape in SHAPES.items()}
        optimizer.apply_gradients([(given[name], of[name]) for name in SHAPES])
    later = np.load(place / "later.npz")
    for name, variable in of.items():
        np.testing.assert_allclose(variable.numpy(), later[name.replace("/", "_")], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["jax", broad("torch")])
def test_a_file_of_another_backend_goes_on_here(backend: str) -> None:
    """On TensorFlow, with the losses that the other backend had next."""
    assert not results(backend)["check_files"]
    path = folder(backend)
    model = keras.models.load_model(path / "model.keras", custom_objects=optim.keras_objects(keras))
    random = np.random.default_rng(0)
    x, y = (random.random((32, n)).astype(np.float32) for n in (4, 2))
    found = model.fit(x, y, 8, epochs=3, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(found, json.loads((path / "losses.json").read_text()), rtol=1e-5)


@functools.cache
def mesh_results(checks: str, *words: str) -> dict[str, str]:
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "CHECKS": checks}
    return {each["check"]: each["error"] for each in program("jax", "mesh_checks", *words, **devices)}


@pytest.mark.parametrize("check", checks_of("mesh_checks"))
def test_slots_on_a_mesh(check: str) -> None:
    """Each check of `mesh_checks.py`, on eight CPU devices."""
    assert not mesh_results(which(check))[check]


@pytest.mark.breadth
def test_each_placement_on_each_mesh() -> None:
    assert not mesh_results("long", "all")["check_steps_are_those_of_one_device"]


BESIDE_TENSORFLOW = """
import tensorflow as tf
import keras, numpy as np, optim
import migrate
ours = optim.SGD(0.5, momentum=0.5)
assert isinstance(ours, tf.Module)
optimizer = optim.for_keras(ours)
variable = keras.Variable([1.0, 2.0], name="v")
for _ in range(2):
    optimizer.apply([keras.ops.ones(2)], [variable])
print(np.array(variable).tolist(), int(optimizer.iterations))
optim.save_checkpoint("c", optimizer, [variable])
again = optim.load_checkpoint("c", [variable])
print(type(again) is type(optimizer), np.array(again.get_slot(variable, "m")).tolist())
report = migrate.restore("c", again, [variable])
print(report.fidelity, report.dest, np.array(again.get_slot(variable, "m")).tolist())
"""


@pytest.mark.breadth
def test_optimizers_of_tensorflow_are_taken_too(tmp_path: Path) -> None:
    """If TensorFlow was imported first, as Keras's `set_random_seed` does."""
    variables = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-c", BESIDE_TENSORFLOW]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, env=variables, timeout=HANGS)
    assert done.stdout.split("\n")[:3] == [
        "[-0.25, 0.75] 2",
        "True [-0.75, -0.75]",
        "exact optim.SGD [-0.75, -0.75]",
    ], done.stderr[-2000:]
