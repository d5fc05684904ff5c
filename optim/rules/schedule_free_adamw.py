"""Schedule-Free AdamW: steps of Adam at z, an average x of z for evaluation, gradients at y between the two.

    v ← β₂·v + (1−β₂)·g²        u = g / (√(v/(1−β₂ᵗ)) + ε) + λ·y        lr = rate · min(1, t/warmup)
    w = tʳ · L^q,  L the largest lr so far        W ← W + w        c = w/W
    z ← z − lr·u        x ← (1−c)·x + c·z        y ← (1−β₁)·z + β₁·x

The variable is y, the slot `z` starts as the variable, and x = (y − (1−β₁)·z)/β₁ is not kept:
y ← y + c·(z−y) + lr·(β₁·(1−c) − 1)·u with the old z. W and L are scalars of the optimizer, λ is `weight_decay`.
Defazio et al., "The Road Less Scheduled" (2024), algorithm 1; `AdamWScheduleFree` of `schedulefree` 1.4, whose
q = `weight_lr_power` is 2. Keras 3.14 and 3.15 (`optimizers/schedule_free_adamw.py`) have r = q = 0, decay y before the
step as every Keras optimizer does (`weight_decay_in_step=False`), and on TensorFlow use the new z to compute x from y
(`late_z=True`): there `momentum.value` is the variable, which has changed by then. On JAX it is an array.
That makes the last line y ← y + c·(z−y) with the new z.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, choice, rate
from optim.rule import AS_VARIABLE, Arrays, Rule, Scalars, Slot
from optim.rules.powers import float32_powers, power


@dataclass(frozen=True)
class ScheduleFreeAdamWRule(Rule):
    learning_rate = rate(0.0025)
    beta_1 = Hyperparameter(0.9, "position of y between z (0) and x (1)", low=math.ulp(0.0), high=1.0, closed=True)
    beta_2 = Hyperparameter(0.999, "decay rate of the mean of squared gradients", high=1.0)
    epsilon = Hyperparameter(1e-08, "added to the root")
    warmup_steps = Hyperparameter(0.0, "number of steps in which the learning rate grows to its value")
    r = Hyperparameter(0.0, "power of the step's number in its weight", keyword=True)
    weight_lr_power = Hyperparameter(
        0.0, "q, power of the largest learning rate so far in a step's weight; 2 in facebookresearch's", keyword=True
    )
    late_z: bool = choice(
        False, "True uses the new z instead of the old one to compute x from y, as Keras 3.14 and 3.15 do on TensorFlow"
    )
    weight_decay_in_step: bool = choice(
        True, "whether `weight_decay` is added to the direction of a step; False shrinks y before it, as Keras does"
    )
    float32_powers: bool | str = float32_powers()

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (
            Slot("z", unit="variable", initial=AS_VARIABLE),
            Slot("v", unit="gradient^2", nonnegative=True, few_bits=True),
        )

    @property
    def scalars(self) -> Mapping[str, float]:
        return {"weight_sum": 0.0, "largest_rate": 0.0}

    @property
    def places_weight_decay(self) -> bool:
        return self.weight_decay_in_step

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        beta_1, beta_2 = hyper["beta_1"], hyper["beta_2"]
        one = xp.ones_like(step)
        warmth = xp.minimum(step / xp.maximum(hyper["warmup_steps"] * one, 1e-30), 1.0)
        lr = hyper["learning_rate"] * warmth
        largest = xp.maximum(hyper["largest_rate"], hyper.get("base_learning_rate", hyper["learning_rate"]) * warmth)
        weight = step ** hyper["r"] * largest ** hyper["weight_lr_power"]
        total = hyper["weight_sum"] + weight
        share = weight / xp.where(total > 0.0, total, 1.0 + total)  # a rate of 0 so far gives weight 0
        return {
            "weight_sum": total,
            "largest_rate": largest,
            "lr": lr,
            "share": share,
            "y_rate": -lr * share if self.late_z else lr * (beta_1 * (1.0 - share) - 1.0),
            "correction": 1.0 / xp.sqrt(1.0 - power(xp, beta_2, step, self.float32_powers)),
            "one_minus_beta_2": 1.0 - beta_2,
            "epsilon": hyper["epsilon"],
            "weight_decay": hyper.get("weight_decay", 0.0) if self.weight_decay_in_step else 0.0,
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        v = slots["v"] + c["one_minus_beta_2"] * (xp.square(gradient) - slots["v"])
        direction = gradient / (c["correction"] * xp.sqrt(v) + c["epsilon"]) + c["weight_decay"] * variable
        change = c["share"] * (slots["z"] - variable) + c["y_rate"] * direction
        return change, {"z": slots["z"] - c["lr"] * direction, "v": v}
