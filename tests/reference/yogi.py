"""Yogi, in float64 NumPy: Zaheer et al. (2018), algorithm 2, with Adam's bias corrections and the proximal step of
L1 and L2 penalties: argmin over x of |x − x'|²/(2α) + l₁|x| + l₂x²/2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class Yogi:
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-3
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    initial_accumulator_value: float = 1e-6
    activation: str = "sign"

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {"v": np.full(shape, self.initial_accumulator_value), "m": np.zeros(shape)}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        slots["m"] = self.beta_1 * slots["m"] + (1 - self.beta_1) * gradient
        difference = gradient**2 - slots["v"]
        sign = np.sign(difference) if self.activation == "sign" else np.tanh(10 * difference)
        slots["v"] = slots["v"] + (1 - self.beta_2) * sign * gradient**2
        corrected = rate * np.sqrt(1 - self.beta_2**number) / (1 - self.beta_1**number)
        rates = corrected / (np.sqrt(slots["v"]) + self.epsilon)
        moved = value - rates * slots["m"]
        limit = self.l1_regularization_strength * rates
        shrunk = np.where(np.abs(moved) > limit, moved - np.sign(moved) * limit, 0.0)
        return shrunk / (1 + self.l2_regularization_strength * rates)
