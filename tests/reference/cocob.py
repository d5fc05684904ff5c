"""COCOB-Backprop, in float64 NumPy: Orabona & Tommasi (2017), algorithm 2.

There θ is minus the sum of gradients, and w is where a number is, w₁ where it began.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array

NAMES = ("largest_gradient", "gradient_norm_sum", "gradient_sum", "bet", "reward")


@dataclass(frozen=True)
class COCOB:
    alpha: float = 100.0

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {**{name: np.zeros(shape) for name in NAMES}, "largest_gradient": np.full(shape, 1e-8)}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        size, bet = np.abs(gradient), slots["bet"]
        largest = np.maximum(slots["largest_gradient"], size)
        sizes = slots["gradient_norm_sum"] + size
        reward = np.maximum(slots["reward"] + bet * -gradient, 0.0)
        theta = -slots["gradient_sum"] - gradient
        fraction = theta / (largest * np.maximum(sizes + largest, self.alpha * largest))
        new = dict(zip(NAMES, (largest, sizes, -theta, fraction * (largest + reward), reward), strict=True))
        moved = rate * (new["bet"] - slots["bet"])
        slots.update(new)
        return value + moved
