"""Adafactor, in float64 NumPy.

Shazeer & Stern (2018), algorithms 4 (matrices) and 5 (vectors): V̂ = R·C/(1ᵀR), here with means in place of sums, which
cancel; of more than two dims, the last two are the matrix. Û = U/max(1, RMS(U)/d), α = max(ε₂, RMS(X))·ρ, and
β̂₂ = 1 − t^c (algorithm 6 has c = −0.8). ρ = min(learning rate, 1/√t), or the learning rate without `learning_rate_cap`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class Adafactor:
    beta_2_decay: float = -0.8
    epsilon_1: float = 1e-30
    epsilon_2: float = 1e-3
    clip_threshold: float = 1.0
    relative_step: bool = True
    learning_rate_cap: bool = True

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        if len(shape) < 2:
            return {"v": np.zeros(shape)}
        return {"r": np.zeros(shape[:-1]), "c": np.zeros((*shape[:-2], shape[-1]))}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        beta = 1 - float(number) ** self.beta_2_decay
        square = gradient**2 + self.epsilon_1
        if gradient.ndim < 2:
            second = slots["v"] = beta * slots["v"] + (1 - beta) * square
        else:
            rows = slots["r"] = beta * slots["r"] + (1 - beta) * square.mean(axis=-1)
            columns = slots["c"] = beta * slots["c"] + (1 - beta) * square.mean(axis=-2)
            second = np.einsum("...i,...j->...ij", rows, columns) / rows.mean(axis=-1)[..., None, None]
        update = gradient / np.sqrt(second)
        update = update / max(1.0, np.sqrt(np.mean(update**2)) / self.clip_threshold)
        relative = min(rate, 1 / np.sqrt(number)) if self.learning_rate_cap else rate
        return value - relative * max(self.epsilon_2, np.sqrt(np.mean(value**2))) * update
