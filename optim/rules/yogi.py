"""Yogi: Adam whose second moment changes by steps of the size of g², whatever its own size.

    m ← β₁·m + (1−β₁)·g        v ← v + (1−β₂)·s·g²,  s = sign(g² − v),  or  tanh(10·(g² − v))
    α = lr·√(1−β₂ᵗ)/(1−β₁ᵗ) / (√v + ε)        x = p − α·m        p ← sign(x)·max(|x| − l₁·α, 0) / (1 + l₂·α)

Zaheer et al., "Adaptive Methods for Nonconvex Optimization" (2018), algorithm 2. The bias corrections, the start of v,
tanh, l₁ and l₂ (a proximal step, which the paper does not have) as `Yogi` of TensorFlow Addons 0.20
(`optimizers/yogi.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, choice, fixed_number, one_of, rate
from optim.rule import Arrays, Rule, Scalars, Slot


@dataclass(frozen=True)
class YogiRule(Rule):
    learning_rate = rate(0.01)
    beta_1 = Hyperparameter(0.9, "decay rate of the mean of gradients", high=1.0)
    beta_2 = Hyperparameter(0.999, "1 − β₂ is the size of a change of `v` relative to g²", high=1.0)
    epsilon = Hyperparameter(1e-3, "added to the root")
    l1_regularization_strength: float = choice(0.0, "l₁, >= 0", fixed_number, keyword=False)
    l2_regularization_strength: float = choice(0.0, "l₂, >= 0", fixed_number, keyword=False)
    initial_accumulator_value: float = choice(1e-6, "initial value of `v`, >= 0", fixed_number, keyword=False)
    activation: str = choice("sign", '"sign" or "tanh", for s', one_of("sign", "tanh"), keyword=False)

    @property
    def slots(self) -> tuple[Slot, ...]:
        start = self.initial_accumulator_value
        return (
            Slot("v", unit="gradient^2", initial=start, nonnegative=True),
            Slot("m", unit="gradient", few_bits=True),
        )

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        beta_1, beta_2 = hyper["beta_1"], hyper["beta_2"]
        return {
            "alpha": hyper["learning_rate"] * xp.sqrt(1.0 - beta_2**step) / (1.0 - beta_1**step),
            "one_minus_beta_1": 1.0 - beta_1,
            "one_minus_beta_2": 1.0 - beta_2,
            "epsilon": hyper["epsilon"],
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        m = slots["m"] + c["one_minus_beta_1"] * (gradient - slots["m"])
        square = xp.square(gradient)
        excess = square - slots["v"]
        sign = xp.sign(excess) if self.activation == "sign" else xp.tanh(10.0 * excess)
        v = slots["v"] + c["one_minus_beta_2"] * sign * square
        alpha = c["alpha"] / (xp.sqrt(v) + c["epsilon"])
        change = -alpha * m
        if self.l1_regularization_strength or self.l2_regularization_strength:
            moved = variable + change
            size = xp.maximum(xp.abs(moved) - self.l1_regularization_strength * alpha, 0.0)
            change = xp.sign(moved) * size / (1.0 + self.l2_regularization_strength * alpha) - variable
        return change, {"v": v, "m": m}
