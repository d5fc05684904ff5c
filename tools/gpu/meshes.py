"""Meshes: steps on 1, 2 and 4 devices against the same steps on CPUs, bit for bit.

One GPU is enough: it is divided into logical devices, each with its own stream and memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tests.test_optim.cases import ROWS, Case
from tests.test_optim.support import put, put_gradients, stepper, variable

DEVICES = 4
MEMORY = 1024
"""Of each logical GPU, in MiB."""
STEPS, BAD_STEP = 4, 1
SIZES = {1: (1, 1), 2: (1, 2), 4: (2, 2)}
"""Of the dims of a mesh, by its number of devices."""
SHAPES = {"kernel": (6, 4), "table": (8, 3), "bias": (4,), "cube": (4, 6, 8)}
DIVIDED = {"kernel": ("batch", None), "table": ("model", None), "bias": (None,), "cube": (None, "model", None)}
WHOLE = {name: (None,) * len(shape) for name, shape in SHAPES.items()}
ZERO1 = {"slot_placement": "zero1"}
Run = tuple[str, dict[str, Any], dict[str, tuple[str | None, ...]], bool]
RUNS: Sequence[Run] = (
    ("adam", {"use_ema": True}, DIVIDED, False),
    ("adam", {"use_ema": True}, DIVIDED, True),
    ("adam", {**ZERO1, "weight_decay": 0.1}, DIVIDED, False),
    ("adam", {**ZERO1, "weight_decay": 0.1}, DIVIDED, True),
    ("adam", {**ZERO1, "loss_scale": "dynamic"}, WHOLE, True),
    ("adam", {"global_clipnorm": 0.5}, DIVIDED, True),
    ("lamb", {}, WHOLE, True),
)
"""A case, its options, how its variables are divided, and whether the steps are in a function."""
CLOSE = 1e-5
"""How far norms may put results off, in parts of the largest value: DTensor adds up in an order of the device's."""


def divide(emulated: bool) -> None:
    """Make four logical devices of the CPU and, if not `emulated`, of all GPUs, before TensorFlow begins."""
    for kind in ("CPU",) if emulated else ("CPU", "GPU"):
        devices = tf.config.list_physical_devices(kind)
        configuration = tf.config.LogicalDeviceConfiguration(memory_limit=None if kind == "CPU" else MEMORY)
        for physical in devices:
            tf.config.set_logical_device_configuration(physical, [configuration] * math.ceil(DEVICES / len(devices)))


def check(device: Any) -> tuple[bool, str]:
    """Compare all runs. An error of one leaves the others alone."""
    kind, wrong = device.name.split(":")[0], []
    for count in SIZES:
        for run in RUNS:
            try:
                problem = _problem_of(device, kind, count, run)
            except Exception as error:  # whatever TensorFlow raises is the result of this run
                problem = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
            if problem:
                name, options, _, in_function = run
                how = "in a function" if in_function else "eagerly"
                wrong.append(f"{name} with {options or 'no option'} on {count} devices, {how}: {problem}")
                print("  ", wrong[-1], flush=True)
    runs = len(SIZES) * len(RUNS)
    text = f"{runs - len(wrong)} of {runs} runs on 1, 2 and 4 devices agree with CPUs"
    return not wrong, "; ".join([text, *wrong[:1]])


def _problem_of(device: Any, kind: str, count: int, run: Run) -> str:
    """What is wrong with a run; empty if nothing is."""
    case = next(case for case in ROWS if case.name == run[0])
    expected, _, _ = _trained("CPU", count, case, run)
    with device.launching(case):
        results, optimizer, has_op = _trained(kind, count, case, run)
        reason = device.why_not_used(optimizer)
    _, options, _, in_function = run
    if in_function and not has_op:
        return "the function has no kernel of dtopt's"
    if reason and not in_function:
        return f"not updated by the kernel: {reason}"
    largest = max(float(np.max(np.abs(value))) for value in _start().values())
    for ours, theirs in zip(results, expected, strict=True):
        off = float(np.max(np.abs(ours.astype(np.float64) - theirs), initial=0))
        if ours.tobytes() != theirs.tobytes() and not ("global_clipnorm" in options and off <= CLOSE * largest):
            return f"differs from CPUs by {off:.3g}"
    return ""


def _start() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.normal(size=shape) for name, shape in SHAPES.items()}


def _trained(kind: str, count: int, case: Case, run: Run) -> tuple[list[np.ndarray], Any, bool]:
    """What devices have of variables and slots after some steps, the optimizer, and whether a function has our op."""
    _, options, specs, in_function = run
    devices = [f"{kind}:{k * DEVICES // count}" for k in range(count)]
    mesh = dtensor.create_mesh([*zip(("batch", "model"), SIZES[count], strict=True)], devices=devices)
    layouts = {name: dtensor.Layout([s or dtensor.UNSHARDED for s in of], mesh) for name, of in specs.items()}
    model = {name: variable(value, layouts[name], name, tf.float32) for name, value in _start().items()}
    optimizer = case.make(mesh=mesh, **options)
    optimizer.build(list(model.values()))
    step = stepper(optimizer, "function" if in_function else "eager")
    for k in range(STEPS):
        gradients = {name: np.cos(value + k) for name, value in _start().items()}
        if k == BAD_STEP and "loss_scale" in options:
            gradients["bias"][0] = math.inf
        step(put_gradients(gradients, model))
    parts = [part.numpy() for v in (*model.values(), *optimizer.variables) for part in dtensor.unpack(v.read_value())]
    return parts, optimizer, in_function and _has_op(optimizer, model)


def _has_op(optimizer: Any, model: dict[str, Any]) -> bool:
    """Whether a function in which these variables step has dtopt's op."""

    @tf.function(autograph=False)
    def step(gradients: Any) -> None:
        optimizer.apply_gradients(list(zip(gradients, model.values(), strict=True)))

    graph = step.get_concrete_function([put(np.zeros(v.shape), v.layout, v.dtype) for v in model.values()]).graph
    return any(op.type in ("DtoptStep", "DtoptStepTogether") for op in graph.get_operations())
