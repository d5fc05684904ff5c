"""Adamax.

    m ← β₁·m + (1−β₁)·g        u ← max(β₂·u, |g|)        p ← p − lr / (1−β₁ᵗ) · m / (u + ε)

Kingma & Ba, "Adam" (2015), algorithm 2; ε, which the paper does not have, as in every Keras from 1.0
(`optimizers.py`) to 3 (`optimizers/adamax.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optim.rule import Arrays, Elementwise, Scalars, Slot


@dataclass(frozen=True)
class AdamaxRule(Elementwise):
    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot("m", unit="gradient"), Slot("u", unit="gradient"))

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        beta_1 = hyper["beta_1"]
        return {
            "alpha": hyper["learning_rate"] / (1.0 - beta_1**step),
            "beta_1": beta_1,
            "one_minus_beta_1": 1.0 - beta_1,
            "beta_2": hyper["beta_2"],
            "epsilon": hyper["epsilon"],
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        m = slots["m"] + c["one_minus_beta_1"] * (gradient - slots["m"])
        u = xp.maximum(c["beta_2"] * slots["u"], xp.abs(gradient))
        return -c["alpha"] * m / (u + c["epsilon"]), {"m": m, "u": u}
