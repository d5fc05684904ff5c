"""What a step and a build cost besides moving bytes: little for each variable, and hardly more on more devices.

Times are the least of several, of one process, and only compared with each other: other load on the machine makes
single ones longer, but rarely all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tensorflow.experimental import dtensor

import optim
from tests.test_optim.support import put, variable

MODES = ("local", "native")


def _least(call: Callable[[], Any], repeats: int = 15) -> float:
    """Seconds of the fastest call."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def _step(devices: list[str], count: int) -> float:
    """Seconds of a step of that many variables of 8 elements, sharded over the devices."""
    layout = dtensor.Layout(["x"], dtensor.create_mesh([("x", len(devices))], devices=devices))
    model = [variable(np.ones(8), layout, "same") for _ in range(count)]
    gradient = put(np.ones(8), layout)
    optimizer = optim.Adam(1e-3)
    optimizer.build(model)
    pairs = [(gradient, v) for v in model]
    optimizer.apply_gradients(pairs)
    return _least(lambda: optimizer.apply_gradients(pairs))


@pytest.mark.parametrize("mode", MODES)
def test_a_step_costs_in_proportion_to_its_variables(devices: list[str], mode: str) -> None:
    assert _step(devices[:2], 400) < 3 * 8 * _step(devices[:2], 50)


@pytest.mark.parametrize("mode", ["native"])
def test_devices_cost_far_less_than_in_proportion(devices: list[str], mode: str) -> None:
    """Two to three times as much for eight of them, measured on a quiet machine."""
    assert _step(devices, 100) < 6 * _step(devices[:1], 100)


def test_slots_are_made_faster_than_variables_of_as_many_names(mesh_2: Any) -> None:
    """DTensor compiles an op for each name of a variable, which slots need not wait for."""
    layout, count = dtensor.Layout(["x"], mesh_2), 60
    start = time.perf_counter()
    model = [variable(np.ones(8), layout, f"variable_{i}") for i in range(count)]
    named = time.perf_counter() - start
    optimizer = optim.Adam(1e-3)
    start = time.perf_counter()
    optimizer.build(model)
    assert time.perf_counter() - start < named
    assert [v.name for v in optimizer.variables[-2:]] == [f"Adam/v/variable_{i}:0" for i in (count - 2, count - 1)]


def test_a_build_takes_time_in_proportion_to_its_variables(mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    model = [variable(np.ones(8), layout, "same") for _ in range(320)]

    def build(count: int) -> float:
        return _least(lambda: optim.Adam(1e-3).build(model[:count]), 3)

    build(10)
    assert build(320) < 3 * 8 * build(40)
