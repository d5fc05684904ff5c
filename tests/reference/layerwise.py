"""NovoGrad and LARS, in float64 NumPy: algorithms with norms of whole variables.

Ginsburg et al. (2019), algorithm 1, with the learning rate in the momentum; You et al. (2017), algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class NovoGrad:
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    grad_averaging: bool = False
    amsgrad: bool = False
    weight_decay: float = 0.0

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        scalars = ("v", "vhat") if self.amsgrad else ("v",)
        return {"m": np.zeros(shape), **{name: np.zeros(()) for name in scalars}}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        square = np.sum(gradient**2)
        slots["v"] = v = np.asarray(square if number == 1 else self.beta_2 * slots["v"] + (1 - self.beta_2) * square)
        if self.amsgrad:
            slots["vhat"] = v = np.maximum(slots["vhat"], v)
        direction = gradient / (np.sqrt(v) + self.epsilon) + self.weight_decay * value
        if self.grad_averaging and number > 1:
            direction = (1 - self.beta_1) * direction
        slots["m"] = self.beta_1 * slots["m"] - rate * direction
        return value + slots["m"]


@dataclass(frozen=True)
class LARS:
    momentum: float = 0.9
    trust_coefficient: float = 0.001
    epsilon: float = 0.0
    nesterov: bool = False
    norm_of_sum: bool = False
    weight_decay: float = 0.0

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {"m": np.zeros(shape)}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        decayed = gradient + self.weight_decay * value
        size, length = np.linalg.norm(value), np.linalg.norm(gradient)
        divisor = np.linalg.norm(decayed) if self.norm_of_sum else length + self.weight_decay * size
        if size > 0 and (divisor if self.norm_of_sum else length) > 0:
            rate = rate * self.trust_coefficient * size / (divisor + self.epsilon)
        taken = rate * decayed
        slots["m"] = self.momentum * slots["m"] - taken
        return value + (self.momentum * slots["m"] - taken if self.nesterov else slots["m"])
