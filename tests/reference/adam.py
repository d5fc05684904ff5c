"""Adam and AMSGrad, in float64 NumPy.

Adam: Kingma & Ba (2015), algorithm 1 with the more efficient order of computation that the last paragraph of
section 2 gives: α_t = α·√(1−β₂ᵗ)/(1−β₁ᵗ), θ_t = θ_{t−1} − α_t·m_t/(√v_t + ε̂).
AMSGrad: Reddi, Kale & Kumar (2018), algorithm 2: v̂_t = max(v̂_{t−1}, v_t) takes the place of v_t; the biases are
corrected as in Adam, as Keras does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class Adam:
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    amsgrad: bool = False
    bias_correction: bool = True
    nesterov: bool = False

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {name: np.zeros(shape) for name in ("m", "v", *(["vhat"] if self.amsgrad else []))}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        slots["m"] = self.beta_1 * slots["m"] + (1 - self.beta_1) * gradient
        slots["v"] = self.beta_2 * slots["v"] + (1 - self.beta_2) * gradient**2
        second = slots["v"]
        if self.amsgrad:
            second = slots["vhat"] = np.maximum(slots["vhat"], slots["v"])
        corrected_rate = rate
        if self.bias_correction:
            corrected_rate = rate * np.sqrt(1 - self.beta_2**number) / (1 - self.beta_1**number)
        ahead = self.beta_1 * slots["m"] + (1 - self.beta_1) * gradient if self.nesterov else slots["m"]
        return value - corrected_rate * ahead / (np.sqrt(second) + self.epsilon)
