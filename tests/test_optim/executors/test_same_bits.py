"""The next step has the same bits whatever mesh, layout and placement the state was carried to, on dtopt's kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.support import put, variable

SHAPES = {"kernel": (64, 48), "bias": (48,), "odd": (7, 5)}
OPTIONS: dict[str, Any] = {"weight_decay": 0.1, "use_ema": True, "global_clipnorm": 1.0}


def _values(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape) for name, shape in SHAPES.items()}


def _layouts(mesh: Any, kernel: list[str], bias: list[str]) -> dict[str, Any]:
    odd = dtensor.Layout.replicated(mesh, 2)
    return {"kernel": dtensor.Layout(kernel, mesh), "bias": dtensor.Layout(bias, mesh), "odd": odd}


def _step(optimizer: Any, model: dict[str, Any], layouts: dict[str, Any], seed: int) -> None:
    optimizer.apply_gradients([(put(g, layouts[n], tf.float32), model[n]) for n, g in _values(seed).items()])


@pytest.mark.parametrize("mode", ["native"])
@pytest.mark.parametrize("algorithm", [optim.Adam, optim.RMSprop, optim.Ftrl])
@pytest.mark.quick(1)
def test_the_next_step_elsewhere(algorithm: Any, mode: str, mesh_2x2: Any, mesh_2: Any, tmp_path: Path) -> None:
    first = _layouts(mesh_2x2, ["batch", "model"], ["model"])
    model = {n: variable(v, first[n], n, tf.float32) for n, v in _values(0).items()}
    optimizer = algorithm(0.01, slot_placement="zero1", **OPTIONS)
    _step(optimizer, model, first, 1)
    path = str(tmp_path / "saved")
    optim.save_checkpoint(path, optimizer, model)
    _step(optimizer, model, first, 2)
    assert set(optimizer.executor_report().kernels.values()) == {"native"}
    places = (
        dict.fromkeys(SHAPES),  # one device, no mesh
        _layouts(mesh_2, ["unsharded", "x"], ["unsharded"]),
        _layouts(mesh_2x2, ["unsharded", "unsharded"], ["batch"]),
    )
    for layouts in places:
        others = {n: variable(np.zeros(shape), layouts[n], n, tf.float32) for n, shape in SHAPES.items()}
        resumed = optim.load_checkpoint(path, others)
        _step(resumed, others, layouts, 2)
        for name, var in model.items():
            assert value_of(var).tobytes() == value_of(others[name]).tobytes(), name
            for slot in optimizer.slot_names:
                mine, theirs = optimizer.get_slot(var, slot), resumed.get_slot(others[name], slot)
                assert value_of(mine).tobytes() == value_of(theirs).tobytes(), f"{slot} of {name}"


@pytest.mark.parametrize("mode", ["native"])
def test_subnormal_numbers_are_the_same_in_a_function(mode: str) -> None:
    """TensorFlow takes them for 0 in its ops and in the threads of its pool, of which a step without an op has some."""
    ends = []
    for wrapped in (lambda step: step, tf.function):
        variable, optimizer = tf.Variable(np.full(200_000, 1e-40, np.float32)), optim.SGD(0.5)
        gradient = tf.zeros_like(variable)
        wrapped(lambda o=optimizer, g=gradient, v=variable: o.apply_gradients([(g, v)]))()
        ends.append(np.asarray(memoryview(variable.read_value())).tobytes())
    assert ends[0] == ends[1]
