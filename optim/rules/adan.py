"""Adan: Nesterov's momentum from the differences of gradients.

    d = g − g₋₁,  at the first step 0
    m ← β₁·m + (1−β₁)·g        v ← β₂·v + (1−β₂)·d        n ← β₃·n + (1−β₃)·(g + β₂·d)²
    p ← p − lr · (m/(1−β₁ᵗ) + β₂·v/(1−β₂ᵗ)) / (√(n/(1−β₃ᵗ)) + ε)        g₋₁ ← g

Xie et al., "Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep Models" (2022), algorithm 1, whose β
are 1 minus these. As the authors' code (github.com/sail-sg/Adan), with its `no_prox` way of weight decay, which is the
option `weight_decay`. `optax.adan` 0.2 has 1 − β₂ where the paper and the authors have β₂ in front of d and of v.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, rate
from optim.rule import Arrays, Rule, Scalars, Slot


@dataclass(frozen=True)
class AdanRule(Rule):
    learning_rate = rate()
    beta_1 = Hyperparameter(0.98, "decay rate of the mean of gradients", high=1.0)
    beta_2 = Hyperparameter(0.92, "decay rate of the mean of their differences", high=1.0)
    beta_3 = Hyperparameter(0.99, "decay rate of the mean of squares", high=1.0)
    epsilon = Hyperparameter(1e-08, "added to the root")

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (
            Slot("m", unit="gradient", few_bits=True),
            Slot("v", unit="gradient", few_bits=True),
            Slot("n", unit="gradient^2", nonnegative=True, few_bits=True),
            Slot("previous_gradient", unit="gradient", few_bits=True),
        )

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        beta_1, beta_2, beta_3 = hyper["beta_1"], hyper["beta_2"], hyper["beta_3"]
        one = xp.ones_like(step)
        return {
            "m_weight": hyper["learning_rate"] / (1.0 - beta_1**step),
            "v_weight": hyper["learning_rate"] * beta_2 / (1.0 - beta_2**step),
            "n_correction": 1.0 / (1.0 - beta_3**step),
            "one_minus_beta_1": 1.0 - beta_1,
            "beta_2": beta_2,
            "one_minus_beta_2": 1.0 - beta_2,
            "one_minus_beta_3": 1.0 - beta_3,
            "epsilon": hyper["epsilon"],
            "has_previous": xp.where(step > 1.0, one, 0.0 * one),
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        difference = c["has_previous"] * (gradient - slots["previous_gradient"])
        m = slots["m"] + c["one_minus_beta_1"] * (gradient - slots["m"])
        v = slots["v"] + c["one_minus_beta_2"] * (difference - slots["v"])
        n = slots["n"] + c["one_minus_beta_3"] * (xp.square(gradient + c["beta_2"] * difference) - slots["n"])
        change = -(c["m_weight"] * m + c["v_weight"] * v) / (xp.sqrt(c["n_correction"] * n) + c["epsilon"])
        return change, {"m": m, "v": v, "n": n, "previous_gradient": gradient}
