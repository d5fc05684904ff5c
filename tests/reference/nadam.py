"""Nadam, in float64 NumPy.

Dozat, "Incorporating Nesterov Momentum into Adam" (2015), algorithm 2 on its page 3:
ĝ = g/(1 − Π_{i≤t} μ_i), m̂ = m/(1 − Π_{i≤t+1} μ_i), n̂ = n/(1 − νᵗ), m̄ = (1 − μ_t)·ĝ + μ_{t+1}·m̂,
θ = θ − η·m̄/(√n̂ + ε), with μ_t = μ·(1 − 0.5·0.96^(t·schedule_decay)).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class Nadam:
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    schedule_decay: float = 1.0

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {"m": np.zeros(shape), "v": np.zeros(shape)}

    def momenta(self, count: int) -> Array:
        """μ_1 ... μ_count."""
        steps = np.arange(1, count + 1)
        return self.beta_1 * (1 - 0.5 * np.power(0.96, steps * self.schedule_decay))

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        momenta = self.momenta(number + 1)
        slots["m"] = self.beta_1 * slots["m"] + (1 - self.beta_1) * gradient
        slots["v"] = self.beta_2 * slots["v"] + (1 - self.beta_2) * gradient**2
        gradient_hat = gradient / (1 - np.prod(momenta[:-1]))
        m_hat = slots["m"] / (1 - np.prod(momenta))
        v_hat = slots["v"] / (1 - self.beta_2**number)
        m_bar = (1 - momenta[-2]) * gradient_hat + momenta[-1] * m_hat
        return value - rate * m_bar / (np.sqrt(v_hat) + self.epsilon)
