"""A custom rule, which NVRTC compiles at its first use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import optim
from optim.native import compiling
from optim.native.compiling import BuildError
from optim.rule import Arrays, Rule, Scalars, Slot
from tools.gpu.device import Device, NothingToCheckError

RATE, KEEPS, STEPS, ELEMENTS = 0.1, 0.75, 3, 40_001
CLOSE = 1e-5


@dataclass(frozen=True)
class BoundedMomentum(Rule):
    """No built-in rule: m <- 0.75 m + g; w <- w - lr m / (1 + |m|)."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot("momentum", unit="gradient"),)

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        return {"lr": hyper["learning_rate"]}

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        momentum = KEEPS * slots["momentum"] + gradient
        return -c["lr"] * momentum / (1.0 + xp.abs(momentum)), {"momentum": momentum}


def check_own_rule(device: Device) -> tuple[bool, str]:
    """Steps of a rule that is in no package, against float64 and bit for bit against the CPU's kernel."""
    try:
        compiling.compiler()
    except BuildError as error:  # the CPU's kernel is what it is compared with
        raise NothingToCheckError(str(error)) from error
    expected, reason = _steps("CPU:0")
    if reason:
        return False, f"on the CPU it is not updated by the kernel: {reason}"
    with device.launching(rules=[BoundedMomentum()]):
        result, reason = _steps(device.name, device)
    if reason:
        return False, f"not updated by the kernel: {reason}"
    off = float(np.max(np.abs(result - _reference())))
    if not off <= CLOSE:
        return False, f"{off:.3g} from the reference"
    if result.tobytes() != expected.tobytes():
        return False, f"differs from the CPU by {float(np.max(np.abs(result - expected))):.3g}"
    return True, f"{STEPS} steps agree with float64, and bit for bit with the CPU"


def _start() -> tuple[np.ndarray, list[np.ndarray]]:
    random = np.random.default_rng(0)
    values = random.normal(size=(1 + STEPS, ELEMENTS)).astype(np.float32)
    return values[0], list(values[1:])


def _steps(place: str, device: Device | None = None) -> tuple[np.ndarray, str]:
    """The variable after some steps, and why no kernel updated it."""
    value, gradients = _start()
    with tf.device(place):
        variable, optimizer = tf.Variable(value), optim.Optimizer(rule=BoundedMomentum(), learning_rate=RATE)
        for gradient in gradients:
            optimizer.apply_gradients([(tf.constant(gradient), variable)])
        reason = device.why_not_used(optimizer) if device else str(optimizer.executor_report().why_not_native)
        return variable.numpy(), reason


def _reference() -> np.ndarray:
    value, gradients = _start()
    weights, momentum = value.astype(np.float64), np.zeros(ELEMENTS)
    for gradient in gradients:
        momentum = KEEPS * momentum + gradient
        weights = weights - RATE * momentum / (1 + np.abs(momentum))
    return weights
