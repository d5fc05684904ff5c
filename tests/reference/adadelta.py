"""Adadelta, in float64 NumPy.

Zeiler, "ADADELTA: An Adaptive Learning Rate Method" (2012), algorithm 1, with RMS[x] = √(E[x²] + ε) (eq. 9), and
the learning rate that Keras multiplies the step with (1 is the paper's form; E[Δx²] is of the step without it).
`new_delta_in_step`: the variable then moves by RMS[Δx] of this step in place of the last one's (TF 1.0 to 1.4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class Adadelta:
    rho: float = 0.95
    epsilon: float = 1e-7
    new_delta_in_step: bool = False

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {"accumulated_grad": np.zeros(shape), "accumulated_delta_var": np.zeros(shape)}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        slots["accumulated_grad"] = self.rho * slots["accumulated_grad"] + (1 - self.rho) * gradient**2
        rms_step = np.sqrt(slots["accumulated_delta_var"] + self.epsilon)
        rms_gradient = np.sqrt(slots["accumulated_grad"] + self.epsilon)
        step = -rms_step / rms_gradient * gradient
        slots["accumulated_delta_var"] = self.rho * slots["accumulated_delta_var"] + (1 - self.rho) * step**2
        if self.new_delta_in_step:
            step = -np.sqrt(slots["accumulated_delta_var"] + self.epsilon) / rms_gradient * gradient
        return value + rate * step
