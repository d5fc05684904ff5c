"""Lion.

    p ← p − lr · sign(β₁·m + (1−β₁)·g)        m ← β₂·m + (1−β₂)·g

Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023), program 1; as tf_keras 2.12 on and Keras 3
(`optimizers/lion.py`). The decay of weights in the paper is the option `weight_decay` of every optimizer here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, rate
from optim.rule import Arrays, Rule, Scalars, Slot


@dataclass(frozen=True)
class LionRule(Rule):
    learning_rate = rate()
    beta_1 = Hyperparameter(
        0.9,
        "weight of the mean in the direction of a step; with 0 the mean is not used: that is sign descent",
        high=1.0,
        closed=True,
    )
    beta_2 = Hyperparameter(0.99, "decay rate of the mean of gradients", high=1.0)

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot("m", unit="gradient", few_bits=True),)

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        beta_1, beta_2 = hyper["beta_1"], hyper["beta_2"]
        return {
            "lr": hyper["learning_rate"],
            "beta_1": beta_1,
            "one_minus_beta_1": 1.0 - beta_1,
            "beta_2": beta_2,
            "one_minus_beta_2": 1.0 - beta_2,
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        direction = xp.sign(c["beta_1"] * slots["m"] + c["one_minus_beta_1"] * gradient)
        m = c["beta_2"] * slots["m"] + c["one_minus_beta_2"] * gradient
        return -c["lr"] * direction, {"m": m}
