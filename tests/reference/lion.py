"""Lion, in float64 NumPy. Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023), algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class Lion:
    beta_1: float = 0.9
    beta_2: float = 0.99

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {"m": np.zeros(shape)}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        update = self.beta_1 * slots["m"] + (1 - self.beta_1) * gradient
        slots["m"] = self.beta_2 * slots["m"] + (1 - self.beta_2) * gradient
        return value - rate * np.sign(update)
