"""Nadam: Adam with Nesterov's momentum.

    μ_t = β₁ · (1 − ½·0.96^(s·t))        U_t = μ_1 · μ_2 ··· μ_t
    m ← β₁·m + (1−β₁)·g        v ← β₂·v + (1−β₂)·g²
    p ← p − lr · (μ_{t+1}/(1−U_{t+1})·m + (1−μ_t)/(1−U_t)·g) / (√(v/(1−β₂ᵗ)) + ε)

Dozat, "Incorporating Nesterov Momentum into Adam" (2015), with the warming schedule that its section 3.1 takes
μ from. s = `schedule_decay` is 0.004 there, in Keras 1 to 2.3 and in OptimizerV2 (`optimizer_v2/nadam.py`, whose
config calls it `decay`); the optimizers from 2.11 to Keras 3 (`optimizers/nadam.py`) dropped it, which is s = 1.
U is the optimizer's scalar `u_product`: Keras 2 calls it `m_schedule`, OptimizerV2 `momentum_cache`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, choice, rate
from optim.rule import Arrays, Rule, Scalars, Slot
from optim.rules.powers import float32_powers, power

DECAY_BASE = 0.96


@dataclass(frozen=True)
class NadamRule(Rule):
    learning_rate = rate()
    beta_1 = Hyperparameter(0.9, "decay rate of the mean of gradients", high=1.0)
    beta_2 = Hyperparameter(0.999, "decay rate of the mean of squared gradients", high=1.0)
    epsilon = Hyperparameter(1e-07, "added to the root")
    schedule_decay = Hyperparameter(
        1.0,
        "s in the schedule μ_t = β₁ · (1 − ½·0.96^(s·t)). 1 is Keras from 2.11 on; 0.004 the paper, OptimizerV2 (where"
        " its config calls it `decay`) and Keras before it",
        keyword=True,
    )
    float32_powers: bool | str = float32_powers()
    lazy_rows_keep_slots: bool = choice(
        True,
        "False: in rows that `lazy_rows` leaves out, `m` and `v` decay anyway, as the sparse steps of"
        " OptimizerV2's Nadam have it",
    )

    @property
    def keeps_lazy_slots(self) -> bool:
        return self.lazy_rows_keep_slots

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (
            Slot("m", unit="gradient", few_bits=True),
            Slot("v", unit="gradient^2", nonnegative=True, few_bits=True),
        )

    @property
    def scalars(self) -> Mapping[str, float]:
        return {"u_product": 1.0}

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        beta_1, beta_2, lr = hyper["beta_1"], hyper["beta_2"], hyper["learning_rate"]
        now = beta_1 * (1.0 - 0.5 * DECAY_BASE ** (hyper["schedule_decay"] * step))
        after = beta_1 * (1.0 - 0.5 * DECAY_BASE ** (hyper["schedule_decay"] * (step + 1.0)))
        product = hyper["u_product"] * now
        return {
            "u_product": product,
            "momentum_weight": lr * after / (1.0 - product * after),
            "gradient_weight": lr * (1.0 - now) / (1.0 - product),
            "v_correction": 1.0 / (1.0 - power(xp, beta_2, step, self.float32_powers)),
            "one_minus_beta_1": 1.0 - beta_1,
            "one_minus_beta_2": 1.0 - beta_2,
            "epsilon": hyper["epsilon"],
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        m = slots["m"] + c["one_minus_beta_1"] * (gradient - slots["m"])
        v = slots["v"] + c["one_minus_beta_2"] * (xp.square(gradient) - slots["v"])
        ahead = c["momentum_weight"] * m + c["gradient_weight"] * gradient
        return -ahead / (xp.sqrt(c["v_correction"] * v) + c["epsilon"]), {"m": m, "v": v}
