"""COCOB-Backprop, in float64 NumPy: Orabona & Tommasi (2017), algorithm 2, number by number.

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
        new = {name: np.empty(value.shape) for name in NAMES}
        for i in np.ndindex(value.shape):
            g, bet = gradient[i], slots["bet"][i]
            largest = max(slots["largest_gradient"][i], abs(g))
            sizes = slots["gradient_norm_sum"][i] + abs(g)
            reward = max(slots["reward"][i] + bet * -g, 0.0)
            theta = -slots["gradient_sum"][i] - g
            fraction = theta / (largest * max(sizes + largest, self.alpha * largest))
            after = (largest, sizes, -theta, fraction * (largest + reward), reward)
            for name, x in zip(NAMES, after, strict=True):
                new[name][i] = x
        moved = rate * (new["bet"] - slots["bet"])
        slots.update(new)
        return value + moved
