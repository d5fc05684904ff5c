"""Rectified Adam and AdaBelief, in float64 NumPy.

Liu et al. (2020), algorithm 2: ρ∞ = 2/(1−β₂) − 1, ρ_t = ρ∞ − 2t·β₂ᵗ/(1−β₂ᵗ), and from the threshold on the step
is times r_t = √[(ρ_t−4)(ρ_t−2)ρ∞ / ((ρ∞−4)(ρ∞−2)ρ_t)]. Zhuang et al. (2020), algorithm 2: the second moment
is that of g − m.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class RectifiedAdam:
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    amsgrad: bool = False
    sma_threshold: float = 5.0
    total_steps: float = 0.0
    warmup_proportion: float = 0.1
    min_lr: float = 0.0
    rectify: bool = True
    epsilon_hat: bool = False
    belief = False

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {name: np.zeros(shape) for name in ("m", "v", *(["vhat"] if self.amsgrad else []))}

    def decay_rate(self, rate: float, number: int) -> float:
        if not self.total_steps:
            return rate
        warmup = self.total_steps * self.warmup_proportion
        if number <= warmup:
            return rate * number / warmup
        part = min((number - warmup) / max(self.total_steps - warmup, 1.0), 1.0)
        return rate + (self.min_lr - rate) * part

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        slots["m"] = m = self.beta_1 * slots["m"] + (1 - self.beta_1) * gradient
        spread, floor = ((gradient - m), self.epsilon) if self.belief else (gradient, 0.0)
        slots["v"] = second = self.beta_2 * slots["v"] + (1 - self.beta_2) * spread**2 + floor
        if self.amsgrad:
            second = slots["vhat"] = np.maximum(slots["vhat"], second)
        rate, mean = self.decay_rate(rate, number), m / (1 - self.beta_1**number)
        power = self.beta_2**number
        if self.epsilon_hat:
            root = (np.sqrt(second) + self.epsilon) / np.sqrt(1 - power)
        else:
            root = np.sqrt(second / (1 - power)) + self.epsilon
        if not self.rectify:
            return value - rate * mean / root
        limit = 2 / (1 - self.beta_2) - 1
        length = limit - 2 * number * power / (1 - power)
        if length < self.sma_threshold:
            return value - rate * mean
        factor = np.sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length))
        return value - rate * factor * mean / root


@dataclass(frozen=True)
class AdaBelief(RectifiedAdam):
    epsilon: float = 1e-14
    belief = True
