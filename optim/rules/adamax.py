"""Adamax.

    m ← β₁·m + (1−β₁)·g        u ← max(β₂·u, |g|)        p ← p − lr / (1−β₁ᵗ) · m / (u + ε)

Kingma & Ba, "Adam" (2015), algorithm 2; ε, which the paper does not have, as in every Keras from 1.0
(`optimizers.py`) to 3 (`optimizers/adamax.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, rate
from optim.rule import Arrays, Rule, Scalars, Slot
from optim.rules.powers import float32_powers, power


@dataclass(frozen=True)
class AdamaxRule(Rule):
    learning_rate = rate()
    beta_1 = Hyperparameter(0.9, "decay rate of the mean of gradients", high=1.0)
    beta_2 = Hyperparameter(0.999, "decay rate of the maximum", high=1.0)
    epsilon = Hyperparameter(1e-07, "added to the maximum")
    float32_powers: bool | str = float32_powers()

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot("m", unit="gradient", few_bits=True), Slot("u", unit="gradient", nonnegative=True, few_bits=True))

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        beta_1 = hyper["beta_1"]
        return {
            "alpha": hyper["learning_rate"] / (1.0 - power(xp, beta_1, step, self.float32_powers)),
            "beta_1": beta_1,
            "one_minus_beta_1": 1.0 - beta_1,
            "beta_2": hyper["beta_2"],
            "epsilon": hyper["epsilon"],
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        m = slots["m"] + c["one_minus_beta_1"] * (gradient - slots["m"])
        u = xp.maximum(c["beta_2"] * slots["u"], xp.abs(gradient))
        return -c["alpha"] * m / (u + c["epsilon"]), {"m": m, "u": u}
