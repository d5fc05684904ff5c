"""RMSprop, in float64 NumPy.

Tieleman & Hinton, COURSERA lecture 6e (2012): MeanSquare(t) = ρ MeanSquare(t−1) + (1−ρ) g², and g is divided by its
root. Centered: Graves, "Generating Sequences With Recurrent Neural Networks" (2013), eqs. 38-41, where
Δ = μΔ − lr·g/√(n − ḡ² + ε) and w = w + Δ; n and ḡ are its eqs. 38-39. What other releases do with ε and the learning
rate is read off their sources: `optimizers.py` of Keras 2.3.1, `optimizer_v2/rmsprop.py` and
`optimizer_experimental/rmsprop.py` of Keras 2.9.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class RMSprop:
    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False
    epsilon_inside: bool = True
    learning_rate_in_momentum: bool = True
    momentum_slot: bool | None = None
    initial_velocity: float = 0.0

    @property
    def _moves(self) -> bool:
        return bool(self.momentum or self.momentum_slot)

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        names = [*(["momentum"] if self._moves else []), *(["average_gradient"] if self.centered else [])]
        return {"velocity": np.full(shape, self.initial_velocity)} | {name: np.zeros(shape) for name in names}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        mean_square = slots["velocity"] = self.rho * slots["velocity"] + (1 - self.rho) * gradient * gradient
        if self.centered:
            slots["average_gradient"] = self.rho * slots["average_gradient"] + (1 - self.rho) * gradient
            mean_square = mean_square - slots["average_gradient"] ** 2
        divisor = np.sqrt(mean_square + self.epsilon) if self.epsilon_inside else np.sqrt(mean_square) + self.epsilon
        if not self._moves:
            return value - rate * gradient / divisor
        if self.learning_rate_in_momentum:
            slots["momentum"] = self.momentum * slots["momentum"] + rate * gradient / divisor
            return value - slots["momentum"]
        slots["momentum"] = self.momentum * slots["momentum"] + gradient / divisor
        return value - rate * slots["momentum"]
