"""Adagrad with a proximal step: L₁ and L₂ penalties apply to the result of the step, and L₁ makes numbers exactly zero.

    a ← a + g²        α = lr/√a        p' = p − α·g
    p ← sign(p') · max(|p'| − l₁·α, 0) / (1 + l₂·α)

with a = `accumulator`. Duchi & Singer, "Efficient Online and Batch Learning Using Forward Backward Splitting" (2009),
eqs. 2 and 3, with Adagrad's step sizes; TensorFlow's kernel `ApplyProximalAdagrad`, which `ProximalAdagrad` of
TensorFlow Addons 0.20 calls (`optimizers/proximal_adagrad.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, choice, fixed_number, rate
from optim.rule import Arrays, Rule, Scalars, Slot


@dataclass(frozen=True)
class ProximalAdagradRule(Rule):
    learning_rate = rate()
    initial_accumulator_value: float = choice(0.1, "initial value of `accumulator`, > 0", fixed_number, keyword=False)
    l1_regularization_strength = Hyperparameter(0.0, "strength of the L₁ penalty")
    l2_regularization_strength = Hyperparameter(0.0, "strength of the L₂ penalty")

    @property
    def slots(self) -> tuple[Slot, ...]:
        start = self.initial_accumulator_value
        return (Slot("accumulator", unit="gradient^2", initial=start, nonnegative=True, few_bits=True),)

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        return {
            "lr": hyper["learning_rate"],
            "l1": hyper["l1_regularization_strength"],
            "l2": hyper["l2_regularization_strength"],
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        accumulator = slots["accumulator"] + xp.square(gradient)
        alpha = c["lr"] / xp.sqrt(accumulator)
        moved = variable - alpha * gradient
        size = xp.maximum(xp.abs(moved) - c["l1"] * alpha, 0.0)
        return xp.sign(moved) * size / (1.0 + c["l2"] * alpha) - variable, {"accumulator": accumulator}
