"""Proximal Adagrad, in float64 NumPy: Duchi & Singer (2009), argmin over x of |x − x'|²/(2α) + l₁|x| + l₂x²/2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class ProximalAdagrad:
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {"accumulator": np.full(shape, self.initial_accumulator_value)}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        slots["accumulator"] = slots["accumulator"] + gradient**2
        rates = rate * slots["accumulator"] ** -0.5
        moved = value - rates * gradient
        limit = self.l1_regularization_strength * rates
        shrunk = np.where(np.abs(moved) > limit, moved - np.sign(moved) * limit, 0.0)
        return shrunk / (1 + self.l2_regularization_strength * rates)
