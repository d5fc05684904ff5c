"""Slots that are sharded further than their variable on GPUs, emulated: each GPU updates its part of a shard, and the
others fetch it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.executors import portable
from tests.helpers import emulated_gpu
from tests.test_optim.cases import FIRST
from tests.test_optim.executors import test_zero1_local as zero1
from tests.test_optim.support import put_gradients, stepper, variable


@pytest.fixture(autouse=True)
def _only_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("TensorFlow's ops stepped")

    monkeypatch.setattr(portable, "rule_value", refuse)


def _trained(mesh: Any, dtype: Any, in_function: bool, kind: Any, **options: Any) -> tuple[dict[str, Any], Any]:
    """All parts of all variables and slots after some steps, by device, and the optimizer."""
    model = {
        name: variable(value, dtensor.Layout(zero1.SHARDING[name], mesh), name, dtype)
        for name, value in zero1._values(0).items()
    }
    optimizer = kind(0.1, slot_placement=zero1._middle, **options)
    optimizer.build(list(model.values()))
    run = stepper(optimizer, "function" if in_function else "eager")
    for step in range(4):
        values = zero1._values(step + 1)
        if (step, "loss_scale" in options) == (1, True):
            values["cube"][0, 0, 0] = np.nan
        run(put_gradients(values, model))
    variables = [*model.values(), *optimizer.variables]
    return {f"{i} {v.name}": dtensor.unpack(v.read_value()) for i, v in enumerate(variables)}, optimizer


def _assert_same(launched: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each part that a device has, bit for bit."""
    for what, parts in expected.items():
        for ours, theirs in zip(launched[what], parts, strict=True):
            assert ours.numpy().tobytes() == theirs.numpy().tobytes(), what


OPTIONS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "averages": (optim.Adam, "float32", {"use_ema": True, "ema_overwrite_frequency": 2, "weight_decay": 0.1}),
    "norms": (optim.Adam, "float64", {"global_clipnorm": 0.5}),
    "scaled": (optim.SGD, "float32", {"momentum": 0.9, "loss_scale": "dynamic", "clipnorm": 0.5}),
    "masters": (optim.Adam, "bfloat16", {"master_copies": True, "use_ema": True}),
    "masters, scaled": (optim.Adagrad, "float16", {"master_copies": True, "loss_scale": 4.0}),
    "accumulated": (optim.Adam, "float32", {"gradient_accumulation_steps": 2, "clipvalue": 0.3}),
    "a sum": (optim.SGD, "float32", {"gradient_accumulation_steps": 2}),
}


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.quick(2)
def test_parts_are_updated_as_on_cpus(
    launching: Callable[[], None], name: str, in_function: bool, mesh_2x2: Any
) -> None:
    """With slots of parts that have no gaps in their shard, gaps in one dim, and gaps in two."""
    kind, dtype, options = OPTIONS[name]
    expected, _ = _trained(mesh_2x2, tf.as_dtype(dtype), in_function, kind, **options)
    launching()
    launched, optimizer = _trained(mesh_2x2, tf.as_dtype(dtype), in_function, kind, **options)
    report = optimizer.executor_report()
    assert report.why_not_native == ""
    assert set(report.kernels.values()) == {"native"}
    assert "fetch" in emulated_gpu.driver_calls()
    _assert_same(launched, expected)


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("optimizer", ["Adan", "Ftrl"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.quick(1)
def test_meshes_of_other_sizes(launching: Callable[[], None], optimizer: str, count: int, in_function: bool) -> None:
    mesh = dtensor.create_mesh([("batch", 1), ("model", count)], devices=[f"CPU:{k}" for k in range(count)])
    kind = lambda _, **more: FIRST[optimizer].make(**more)  # noqa: E731
    expected, _ = _trained(mesh, tf.float32, in_function, kind)
    launching()
    launched, made = _trained(mesh, tf.float32, in_function, kind)
    assert made.executor_report().why_not_native == ""
    assert ("fetch" in emulated_gpu.driver_calls()) == (count > 1)
    _assert_same(launched, expected)
