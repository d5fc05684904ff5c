"""Steps on several GPUs, emulated: each replica of a strategy has launches of its own, and so has each device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from tests import emulated_gpu

START = np.array([[1.0, -2.0], [3.0, 0.5], [0.25, 4.0]], np.float32)
STEPS = 4


def _in_replicas(traced: bool, bad: tuple[int, ...] = (), **arguments: Any) -> tuple[list[np.ndarray], Any]:
    """What a run leaves in the copies of both replicas, and its optimizer."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    with strategy.scope():
        variable, optimizer = tf.Variable(START, name="w"), optim.Adam(0.05, **arguments)

    def step(number: Any) -> None:
        replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        optimizer.apply_gradients([((replica + 1.0) * tf.cos(number + tf.constant(START)), variable)])

    def everywhere(number: Any) -> None:
        strategy.run(step, args=(number,))

    once = tf.function(everywhere, autograph=False) if traced else everywhere
    for number in range(STEPS):
        once(tf.constant(math.nan if number in bad else float(number)))
    values = [v for v in (variable, *optimizer.variables) if isinstance(v, tf.distribute.DistributedValues)]
    return [copy.numpy() for value in values for copy in value.values], optimizer


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"global_clipnorm": 0.5, "use_ema": True, "weight_decay": 0.1},
    "accumulated": {"gradient_accumulation_steps": 2, "clipnorm": 0.5},
    "scaled": {"loss_scale": "dynamic", "clipnorm": 0.5},
}


@pytest.mark.parametrize("traced", [True, False], ids=["function", "eager"])
@pytest.mark.parametrize("options", OPTIONS)
def test_replicas_step_as_on_cpus(launching: Callable[[], None], options: str, traced: bool) -> None:
    arguments, bad = OPTIONS[options], (1,) if options == "scaled" else ()
    expected, _ = _in_replicas(traced, bad, **arguments)
    launching()
    launched, optimizer = _in_replicas(traced, bad, **arguments)
    assert optimizer.executor_report().why_not_native == ""
    real = STEPS // arguments.get("gradient_accumulation_steps", 1)
    each = 1 if options == "plain" else 4  # squares, their sums, scales, and the update
    assert emulated_gpu.driver_calls().count("launch") == 2 * each * real
    for ours, theirs in zip(launched, expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


def _on_two_devices(**arguments: Any) -> list[np.ndarray]:
    variables = []
    for k in range(4):
        with tf.device(f"CPU:{k % 2}"):
            variables.append(tf.Variable(START + k))
    optimizer = optim.Adam(0.05, **arguments)
    for number in range(STEPS):
        gradients = [tf.cos(v) * (math.nan if (number, k) == (1, 3) else 1.0) for k, v in enumerate(variables)]
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
    return [v.numpy() for v in (*variables, *optimizer.variables)]


@pytest.mark.parametrize("arguments", [{"loss_scale": 2.0}, {"loss_scale": "dynamic", "global_clipnorm": 0.5}], ids=str)
def test_one_optimizer_has_variables_on_two_devices(launching: Callable[[], None], arguments: dict[str, Any]) -> None:
    expected = _on_two_devices(**arguments)
    launching()
    launched = _on_two_devices(**arguments)
    assert emulated_gpu.driver_calls().count("launch") >= 2 * (STEPS - 1)
    for ours, theirs in zip(launched, expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()
