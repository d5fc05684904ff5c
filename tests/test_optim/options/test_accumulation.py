"""Accumulation over calls with other variables each: eagerly, in several traces, over checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from tests.helpers.breadth import covering
from tests.test_optim.support import put, variable

SUBSETS = [(0, 1), (2,), (1, 2), (0,), (0,), (0,), (1,), (0, 2), (2,), (0, 1, 2), (1,), (2,)]
"""By call: the variables that have a gradient; four windows of three."""
STEPS = 3


def _gradient(call: int, i: int) -> np.ndarray:
    return np.random.default_rng(100 * call + i).normal(size=(4, 2)) * (0.0 if (call, i) == (1, 2) else 1.0)


def _reference() -> list[np.ndarray]:
    """SGD with momentum: only what had a gradient in a window, be it zero, takes part in its step."""
    values, m = [np.ones((4, 2)) for _ in range(3)], [np.zeros((4, 2)) for _ in range(3)]
    for window in range(0, len(SUBSETS), STEPS):
        for i in range(3):
            calls = [c for c in range(window, window + STEPS) if i in SUBSETS[c]]
            if calls:
                m[i] = 0.9 * m[i] - 0.1 * sum(_gradient(c, i) for c in calls) / STEPS
                values[i] = values[i] + m[i]
    return values


def _model(layout: Any) -> tuple[Any, list[Any]]:
    optimizer = optim.SGD(0.1, momentum=0.9, gradient_accumulation_steps=STEPS)
    model = [variable(np.ones((4, 2)), layout, f"w{i}") for i in range(3)]
    optimizer.build(model)
    return optimizer, model


def _call(optimizer: Any, model: list[Any], call: int, functions: dict[Any, Any] | None) -> None:
    def step(gradients: list[Any]) -> None:
        optimizer.apply_gradients([(g, model[i]) for g, i in zip(gradients, SUBSETS[call], strict=True)])

    if functions is not None:
        step = functions.setdefault(SUBSETS[call], tf.function(step))
    step([put(_gradient(call, i), getattr(model[i], "layout", None)) for i in SUBSETS[call]])


def _values(model: list[Any]) -> list[np.ndarray]:
    from optim.layouts.placement import to_host

    return [np.asarray(to_host(v)) for v in model]


@covering(1, mode=["both", "functions", "eager"], place=["mesh", "plain"])
@pytest.mark.quick(1)
def test_each_call_may_bring_other_variables(place: str, mode: str, request: Any) -> None:
    from tensorflow.experimental import dtensor

    mesh = request.getfixturevalue("mesh_2") if place == "mesh" else None
    layout = None if mesh is None else dtensor.Layout(["x", "unsharded"], mesh)
    optimizer, model = _model(layout)
    functions: dict[Any, Any] = {}
    for call in range(len(SUBSETS)):
        in_function = mode == "functions" or (mode == "both" and call % 2)
        _call(optimizer, model, call, functions if in_function else None)
    for found, wanted in zip(_values(model), _reference(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("at", range(1, 6))
@pytest.mark.parametrize("how", ["checkpoint", "slots"])
def test_a_window_goes_on_after_a_checkpoint_of_any_call(at: int, how: str, tmp_path: Any) -> None:
    optimizer, model = _model(None)
    for call in range(at):
        _call(optimizer, model, call, None)
    named = {f"w{i}": v for i, v in enumerate(model)}
    if how == "checkpoint":
        path = tf.train.Checkpoint(optimizer=optimizer, **named).write(str(tmp_path / "c"))
        optimizer, model = _model(None)
        named = {f"w{i}": v for i, v in enumerate(model)}
        tf.train.Checkpoint(optimizer=optimizer, **named).read(path).assert_consumed()
    else:
        optim.save_checkpoint(tmp_path / "c", optimizer, named)
        _, model = _model(None)
        named = {f"w{i}": v for i, v in enumerate(model)}
        optimizer = optim.load_checkpoint(tmp_path / "c", named)
    for call in range(at, len(SUBSETS)):
        _call(optimizer, model, call, None)
    for found, wanted in zip(_values(model), _reference(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
