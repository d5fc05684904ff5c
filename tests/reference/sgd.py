"""Gradient descent with classical or Nesterov momentum, in float64 NumPy.

Written from Sutskever, Martens, Dahl & Hinton, "On the importance of initialization and momentum in deep learning"
(2013). With velocity v, eqs. 1-2:  v' = μv − ε∇f(θ),  θ' = θ + v'.  Nesterov, eqs. 3-4, takes the gradient at the
look-ahead point θ + μv. What a training loop holds is that point, φ = θ + μv, where it can take the gradient:
φ' = θ' + μv' = (φ − μv) + v' + μv'  with  v' = μv − ε∇f(φ).
`tf.train.MomentumOptimizer` (its documentation) has a' = μa + g and φ' = φ − εa', or with Nesterov φ − ε(g + μa').
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class SGD:
    momentum: float = 0.0
    nesterov: bool = False
    learning_rate_in_momentum: bool = True

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {"m": np.zeros(shape)} if self.momentum else {}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        if not self.momentum:
            return value - rate * gradient
        if not self.learning_rate_in_momentum:
            total = slots["m"] = self.momentum * slots["m"] + gradient
            return value - rate * (gradient + self.momentum * total if self.nesterov else total)
        before = slots["m"]
        velocity = slots["m"] = self.momentum * before - rate * gradient
        if self.nesterov:
            return (value - self.momentum * before) + velocity + self.momentum * velocity
        return value + velocity
