"""Conditional gradient, in float64 NumPy: Ravi et al. (2018), x ← x − (1−γ)(x − s), s the least point of the ball.

Of the Frobenius ball s = −λ·g/‖g‖, of the nuclear ball s = −λ·u·vᵀ with the first singular vectors of g; of a vector or
a number they are the same, but for ε.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class ConditionalGradient:
    lambda_: float = 0.01
    epsilon: float = 1e-7
    ord: str = "fro"

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        if self.ord == "fro":
            direction = gradient / (np.linalg.norm(gradient) + self.epsilon)
        else:
            left, _, right = np.linalg.svd(gradient.reshape(-1, value.shape[-1] if value.shape else 1))
            direction = np.outer(left[:, 0], right[0]).reshape(value.shape)
        return value - (1 - rate) * (value + self.lambda_ * direction)
