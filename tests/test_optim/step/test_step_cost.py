"""What a step and a build cost besides moving bytes: little for each variable, and hardly more on more devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tensorflow.experimental import dtensor

import optim
from tests.helpers.timing import assert_cheaper, cpu_seconds, least
from tests.test_optim.support import put, variable

MODES = ("local", "native")


def _step(devices: list[str], count: int) -> Callable[[], float]:
    """A function: processor seconds of a step of that many variables of 8 elements, sharded over the devices."""
    layout = dtensor.Layout(["x"], dtensor.create_mesh([("x", len(devices))], devices=devices))
    model = [variable(np.ones(8), layout, "same") for _ in range(count)]
    gradient = put(np.ones(8), layout)
    optimizer = optim.Adam(1e-3)
    optimizer.build(model)
    pairs = [(gradient, v) for v in model]
    optimizer.apply_gradients(pairs)
    return lambda: least(lambda: optimizer.apply_gradients(pairs), 15)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.quick(1)
def test_a_step_costs_in_proportion_to_its_variables(devices: list[str], mode: str) -> None:
    assert_cheaper(_step(devices[:2], 240), _step(devices[:2], 30), 3 * 8)


@pytest.mark.breadth
@pytest.mark.parametrize("mode", ["native"])
def test_devices_cost_far_less_than_in_proportion(devices: list[str], mode: str) -> None:
    """Two to three times as much for eight of them, measured on a quiet machine."""
    assert_cheaper(_step(devices, 100), _step(devices[:1], 100), 6)


def test_slots_are_made_faster_than_variables_of_as_many_names(mesh_2: Any) -> None:
    """DTensor compiles an op for each name of a variable, which slots need not wait for."""
    layout, count = dtensor.Layout(["x"], mesh_2), 60
    models: list[list[Any]] = []
    optimizer = optim.Adam(1e-3)

    def name() -> None:
        """Names that no earlier attempt used: what is compiled once stays."""
        names = [f"variable_{len(models)}_{i}" for i in range(count)]
        models.append([variable(np.ones(8), layout, name) for name in names])

    def build() -> None:
        nonlocal optimizer
        optimizer = optim.Adam(1e-3)
        optimizer.build(models[-1])

    name()
    assert_cheaper(lambda: cpu_seconds(build), lambda: cpu_seconds(name))
    last = f"Adam/v/variable_{len(models) - 2}"
    assert [v.name for v in optimizer.variables[-2:]] == [f"{last}_{i}:0" for i in (count - 2, count - 1)]


@pytest.mark.breadth
def test_a_build_takes_time_in_proportion_to_its_variables(mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    model = [variable(np.ones(8), layout, "same") for _ in range(240)]

    def build(count: int) -> float:
        return least(lambda: optim.Adam(1e-3).build(model[:count]), 3)

    build(10)
    assert_cheaper(lambda: build(240), lambda: build(30), 3 * 8)
