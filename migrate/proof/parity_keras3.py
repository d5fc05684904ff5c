"""One step of classes that only Keras 3 has, from their own code, as in `parity`.

Sources: `optimizers/muon.py` 3.10, 3.12, 3.13 and 3.15, `optimizers/schedule_free_adamw.py` 3.14 and 3.15.
"""

from __future__ import annotations

import math

import numpy as np

from migrate.proof.parity_source import Slots, Source
from optim.errors import UnsupportedError

Change = tuple[np.ndarray, np.ndarray]
"""The change of the variable, and its size without cancellation."""


def muon_decay(source: Source, slots: Slots) -> float:
    """The weight decay: from 3.13 on (`_apply_weight_decay`), Adam's variables have a separate one."""
    of_adam = "v" in slots and "rms_rate" in source.config
    return source.get("adam_weight_decay" if of_adam else "weight_decay")


def muon(source: Source, lr: float, p: np.ndarray, g: np.ndarray, slots: Slots) -> Change:
    """`Muon`: the slots show which variables Adam updates."""
    if "m" not in slots:
        raise UnsupportedError("before its first step it is unknown which variables Muon leaves to Adam")
    if "v" in slots:
        return _adam(source, lr * source.get("adam_lr_ratio", 1.0), g, slots)
    mu = source.get("momentum", 0.95)
    m = mu * slots["m"] + g
    x = g + mu * m if source.config.get("nesterov", True) else m
    x = x / (np.sqrt(np.sum(x * x, axis=(-2, -1), keepdims=True)) + 1e-7)
    left, s, right = np.linalg.svd(x, full_matrices=False)
    a, b, c = source.get("muon_a", 3.4445), source.get("muon_b", -4.775), source.get("muon_c", 2.0315)
    steps = int(source.get("ns_steps", 5))
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    scale = lr * _factor(source, p.shape)
    # The smallest singular values, and what was rounded with them, grow by `a` in each iteration.
    return -scale * (left * s[..., None, :]) @ right, np.full_like(p, abs(scale) * max(a, 1.0) ** steps)


def _factor(source: Source, shape: tuple[int, ...]) -> float:
    if "rms_rate" not in source.config:
        return math.sqrt(max(1.0, shape[0] / shape[1]))
    rate = source.config["rms_rate"]
    return 1.0 if rate is None else math.sqrt(max(shape[0], shape[1])) * float(rate)


def _adam(source: Source, lr: float, g: np.ndarray, slots: Slots) -> Change:
    b1, b2, t = source.cast("adam_beta_1", 0.9), source.cast("adam_beta_2", 0.999), source.iterations + 1
    mean_1, mean_2 = source.in_means("adam_beta_1", 0.9), source.in_means("adam_beta_2", 0.999)
    old, new = mean_1 * slots["m"], (1.0 - mean_1) * g
    below = np.sqrt(mean_2 * slots["v"] + (1.0 - mean_2) * g * g) + source.get("epsilon", 1e-7)
    corrected = lr * math.sqrt(1.0 - source.power(b2, t)) / (1.0 - source.power(b1, t))
    return -corrected * (old + new) / below, corrected * (np.abs(old) + np.abs(new)) / below


def schedule_free(source: Source, lr: float, p: np.ndarray, g: np.ndarray, slots: Slots) -> Change:
    """`ScheduleFreeAdamW`, by its three sequences."""
    if "z" not in slots:
        raise UnsupportedError("before its first step the state of Schedule-Free AdamW is unknown")
    b1, b2, t = source.cast("beta_1", 0.9), source.cast("beta_2", 0.999), source.iterations + 1
    warm = source.get("warmup_steps")
    rate = lr * min(t / warm, 1.0) if warm > 0 else lr
    v = b2 * slots["v"] + (1.0 - b2) * g * g
    step = rate * g / (np.sqrt(v / (1.0 - source.power(b2, t))) + source.cast("epsilon", 1e-8))
    before, z = slots["z"], slots["z"] - step
    x = (p - (1.0 - b1) * (z if source.late_z else before)) / b1
    x = (1.0 - 1.0 / t) * x + z / t
    return (1.0 - b1) * z + b1 * x - p, np.abs(step) + np.abs(z) + 2.0 * np.abs(p)


FORMULAS = {"Muon": muon, "ScheduleFreeAdamW": schedule_free}
