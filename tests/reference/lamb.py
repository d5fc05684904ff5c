"""LAMB, in float64 NumPy.

You et al. (2020), algorithm 2 with φ(x) = x, λ = `weight_decay`, on m̂ and v̂ as Adam's algorithm 1 corrects them; the
ratio of norms is 1 where one of them is 0, as in the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class Lamb:
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    weight_decay: float = 0.0
    decay_in_step: bool = True

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {"m": np.zeros(shape), "v": np.zeros(shape)}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        slots["m"] = self.beta_1 * slots["m"] + (1 - self.beta_1) * gradient
        slots["v"] = self.beta_2 * slots["v"] + (1 - self.beta_2) * gradient**2
        m_hat = slots["m"] / (1 - self.beta_1**number)
        v_hat = slots["v"] / (1 - self.beta_2**number)
        ratio = m_hat / (np.sqrt(v_hat) + self.epsilon)
        ratio = ratio + self.weight_decay * value
        norms = np.sqrt(np.sum(value**2)), np.sqrt(np.sum(ratio**2))
        trust = norms[0] / norms[1] if norms[0] > 0 and norms[1] > 0 else 1.0
        return value - rate * trust * ratio
