"""Schedule-Free AdamW, in float64 NumPy, by its three sequences: Defazio et al. (2024), algorithm 1.

z takes the steps, x is their weighted mean, and the variable is y = (1−β₁)·z + β₁·x; here x is had from y and z.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class ScheduleFreeAdamW:
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    warmup_steps: float = 0.0
    r: float = 0.0
    weight_lr_power: float = 0.0
    late_z: bool = False
    weight_decay: float = 0.0
    weights: dict[int, tuple[float, float]] = field(default_factory=dict, hash=False)

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {"z": None, "v": np.zeros(shape)}  # type: ignore[dict-item]

    def start(self, value: Array) -> dict[str, Array]:
        return {"z": value.copy(), "v": np.zeros(value.shape)}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        warmth = min(number / self.warmup_steps, 1.0) if self.warmup_steps else 1.0
        total, largest = self.weights.get(number - 1, (0.0, 0.0)) if number > 1 else (0.0, 0.0)
        largest = max(largest, rate * warmth)
        weight = number**self.r * largest**self.weight_lr_power
        self.weights[number] = (total + weight, largest)
        share, rate = weight / (total + weight), rate * warmth
        slots["v"] = self.beta_2 * slots["v"] + (1 - self.beta_2) * gradient**2
        direction = gradient / (np.sqrt(slots["v"] / (1 - self.beta_2**number)) + self.epsilon)
        before = slots["z"]
        slots["z"] = z = before - rate * (direction + self.weight_decay * value)
        x = (value - (1 - self.beta_1) * (z if self.late_z else before)) / self.beta_1
        x = (1 - share) * x + share * z
        return (1 - self.beta_1) * z + self.beta_1 * x
