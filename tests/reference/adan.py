"""Adan, in float64 NumPy: Xie et al. (2022), algorithm 1, each β as 1 minus the paper's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class Adan:
    beta_1: float = 0.98
    beta_2: float = 0.92
    beta_3: float = 0.99
    epsilon: float = 1e-8

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {name: np.zeros(shape) for name in ("m", "v", "n", "previous_gradient")}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        change = gradient - slots["previous_gradient"] if number > 1 else np.zeros_like(gradient)
        slots["m"] = self.beta_1 * slots["m"] + (1 - self.beta_1) * gradient
        slots["v"] = self.beta_2 * slots["v"] + (1 - self.beta_2) * change
        slots["n"] = self.beta_3 * slots["n"] + (1 - self.beta_3) * (gradient + self.beta_2 * change) ** 2
        slots["previous_gradient"] = gradient
        first, second = slots["m"] / (1 - self.beta_1**number), slots["v"] / (1 - self.beta_2**number)
        root = np.sqrt(slots["n"] / (1 - self.beta_3**number)) + self.epsilon
        return value - rate * (first + self.beta_2 * second) / root
