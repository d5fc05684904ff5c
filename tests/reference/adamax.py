"""Adamax, in float64 NumPy.

Kingma & Ba (2015), algorithm 2: u_t = max(β₂·u_{t−1}, |g_t|), θ_t = θ_{t−1} − α/(1−β₁ᵗ)·m_t/u_t; every Keras
adds ε to u.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class Adamax:
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {"m": np.zeros(shape), "u": np.zeros(shape)}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        slots["m"] = self.beta_1 * slots["m"] + (1 - self.beta_1) * gradient
        slots["u"] = np.where(np.abs(gradient) > self.beta_2 * slots["u"], np.abs(gradient), self.beta_2 * slots["u"])
        return value - rate / (1 - self.beta_1**number) * slots["m"] / (slots["u"] + self.epsilon)
