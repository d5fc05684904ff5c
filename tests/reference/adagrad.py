"""Adagrad, in float64 NumPy.

Duchi, Hazan & Singer (2011): x_{t+1} = x_t − η·diag(G_t)^{−1/2}·g_t with G_t = Σ g·gᵀ (section 1.1). ε is what Keras
adds: under the root from 2.11 on (`optimizers/adagrad.py`), to the root before (`optimizer_v2/adagrad.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class Adagrad:
    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7
    epsilon_inside: bool = True

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {"accumulator": np.full(shape, self.initial_accumulator_value)}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        total = slots["accumulator"] = slots["accumulator"] + gradient**2
        if self.epsilon_inside:
            return value - rate * gradient * (total + self.epsilon) ** -0.5
        return value - rate * gradient / (total**0.5 + self.epsilon)
