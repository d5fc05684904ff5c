"""NovoGrad: momentum of gradients that are normalised, each variable's by one second moment.

    v ← β₂·v + (1−β₂)·‖g‖²,  at the first step  ‖g‖²        v̂ ← max(v̂, v)  (AMSGrad only)
    u = g/(√v + ε) + λ·p        with `grad_averaging`, from the second step on,  u ← (1−β₁)·u
    m ← β₁·m − lr·u        p ← p + m

v and v̂ are scalars of a whole variable; λ is `weight_decay`. Ginsburg et al., "Stochastic Gradient Methods with
Layer-wise Adaptive Moments for Training of Deep Networks" (2019), algorithm 1, with the learning rate inside of m as
`NovoGrad` of TensorFlow Addons 0.20 has it (`optimizers/novograd.py`, whose v̂ is shaped like the variable, each
element the same).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, choice, rate
from optim.rule import SCALAR, Arrays, Scalars, Slot, Whole


@dataclass(frozen=True)
class NovoGradRule(Whole):
    learning_rate = rate()
    beta_1 = Hyperparameter(0.9, "the momentum", high=1.0)
    beta_2 = Hyperparameter(0.999, "decay rate of the mean of squared norms", high=1.0)
    epsilon = Hyperparameter(1e-07, "added to the root")
    grad_averaging: bool = choice(False, "whether normalised gradients enter with weight 1 − β₁", keyword=False)
    amsgrad: bool = choice(False, "use the largest `v` so far", keyword=False)

    @property
    def slots(self) -> tuple[Slot, ...]:
        v = Slot("v", unit="gradient^2", like=SCALAR, nonnegative=True)
        largest = Slot("vhat", unit="gradient^2", like=SCALAR, nonnegative=True, at_least="v")
        return (
            (Slot("m", unit="step", few_bits=True), v, largest)
            if self.amsgrad
            else (Slot("m", unit="step", few_bits=True), v)
        )

    @property
    def places_weight_decay(self) -> bool:
        return True

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        beta_1, beta_2, one = hyper["beta_1"], hyper["beta_2"], xp.ones_like(step)
        is_first = step <= 1.0
        lr = hyper["learning_rate"] * one
        return {
            "lr": xp.where(is_first, lr, lr * (1.0 - beta_1)) if self.grad_averaging else lr,
            "beta_1": beta_1,
            "kept": xp.where(is_first, 0.0 * one, beta_2 * one),
            "added": xp.where(is_first, one, (1.0 - beta_2) * one),
            "epsilon": hyper["epsilon"],
            "weight_decay": hyper.get("weight_decay", 0.0),
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        v = c["kept"] * slots["v"] + c["added"] * xp.reduce_sum(xp.square(gradient))
        new = {"v": v}
        if self.amsgrad:
            v = new["vhat"] = xp.maximum(slots["vhat"], v)
        direction = gradient / (xp.sqrt(v) + c["epsilon"]) + c["weight_decay"] * variable
        new["m"] = c["beta_1"] * slots["m"] - c["lr"] * direction
        return new["m"], new
