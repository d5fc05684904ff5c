"""FTRL-Proximal, in float64 NumPy.

McMahan et al., "Ad Click Prediction: a View from the Trenches" (2013), algorithm 1:
w = 0 if |z| ≤ λ₁, else −((β + √n)/α + λ₂)⁻¹·(z − sgn(z)·λ₁), with σ = (√(n+g²) − √n)/α and z ← z + g − σ·w; n starts
at `initial_accumulator_value`, λ₂ is twice `l2_regularization_strength`, and √ may be another power. Shrinkage adds
2·s·w to the gradient that enters z, not the one that enters n (`optimizer_v2/ftrl.py` of Keras 2.9). TF 2.4's FtrlV2
keeps α·z (`learning_rate_in_linear`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class Ftrl:
    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0
    beta: float = 0.0
    learning_rate_in_linear: bool = False

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {"accumulator": np.full(shape, self.initial_accumulator_value), "linear": np.zeros(shape)}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        scale = rate if self.learning_rate_in_linear else 1.0
        before, z = slots["accumulator"], slots["linear"] / scale
        after = before + gradient**2
        root = after**-self.learning_rate_power
        sigma = (root - before**-self.learning_rate_power) / rate
        z = z + gradient + 2 * self.l2_shrinkage_regularization_strength * value - sigma * value
        slots["accumulator"], slots["linear"] = after, scale * z
        l1, l2 = self.l1_regularization_strength, 2 * self.l2_regularization_strength
        moved = -(z - np.sign(z) * l1) / ((self.beta + root) / rate + l2)
        return np.where(np.abs(z) <= l1, 0.0, moved)
