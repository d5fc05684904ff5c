"""Steps that return while the GPU is still at work: nothing in them may wait for it."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

from bench.measuring import events
from optim.native import gpu
from tools.gpu.device import Device, NothingToCheckError, named

BUSY = 0.05
"""Seconds for which the GPU has work before a step."""
PART = 0.5
"""Of that time, within which a call must return."""
SHAPE, COUNT, WARM_UP = [256, 256], 20, 3
STEPS: tuple[tuple[str, dict[str, Any], bool], ...] = (
    ("eagerly", {}, False),
    ("in a function", {}, True),
    ("eagerly with a global norm", {"global_clipnorm": 1.0}, False),
    ("in a function with a global norm", {"global_clipnorm": 1.0}, True),
    ("eagerly with a dynamic loss scale", {"loss_scale": "dynamic"}, False),
    ("eagerly with averages and accumulation", {"use_ema": True, "gradient_accumulation_steps": 2}, False),
)


def check_waiting(device: Device) -> tuple[bool, str]:
    """The call of a step returns before work that was launched before it has ended."""
    if device.emulated:
        raise NothingToCheckError("a CPU does what is launched at once")
    timer = events.of_stream(gpu.stream(device.name), "CUDA events")
    wrong, slowest = [], 0.0
    for name, options, in_function in STEPS:
        called, whole = _seconds(device, timer, options, in_function)
        slowest = max(slowest, called)
        if called > PART * whole:
            wrong.append(f"{name}: the call took {called * 1e3:.1f} of {whole * 1e3:.1f} ms that the GPU was at work")
    text = f"{len(STEPS) - len(wrong)} of {len(STEPS)} ways return while the GPU works, within {slowest * 1e3:.1f} ms"
    return not wrong, "; ".join([text, *wrong])


def _seconds(device: Device, timer: events.Events, options: dict[str, Any], in_function: bool) -> tuple[float, float]:
    """Seconds until the call of a step has returned, and until its result is there."""
    with tf.device(device.name):
        variables = [tf.Variable(tf.ones(SHAPE)) for _ in range(COUNT)]
        gradients = [tf.ones(SHAPE) for _ in range(COUNT)]
        optimizer = named("adam").make(**options)
        optimizer.build(variables)

        def step() -> None:
            optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

        run = tf.function(step) if in_function else step
        for _ in range(WARM_UP):
            run()
        variables[0].numpy()
        start = time.perf_counter()
        timer.occupy(BUSY)
        begun = time.perf_counter()
        run()
        called = time.perf_counter() - begun
        variables[0].numpy()
        return called, time.perf_counter() - start
