"""Adadelta.

    a ← ρ·a + (1−ρ)·g²        u = g · √(d+ε) / √(a+ε)        d ← ρ·d + (1−ρ)·u²        p ← p − lr·u

with a = `accumulated_grad` and d = `accumulated_delta_var`; u uses the old d, and lr does not enter d. The kernel of
`tf.train.AdadeltaOptimizer` in TF 1.0 to 1.4 then moves p by the new d instead: p ← p − lr · g · √(d+ε) / √(a+ε).
Zeiler, "ADADELTA: An Adaptive Learning Rate Method" (2012), algorithm 1, with the learning rate that every Keras
adds (1.0 gives the paper's form).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, choice, rate
from optim.rule import Arrays, Rule, Scalars, Slot


@dataclass(frozen=True)
class AdadeltaRule(Rule):
    learning_rate = rate(
        meaning="float >= 0, scalar tensor, schedule or zero-argument callable; 1.0 is the paper's form"
    )
    rho = Hyperparameter(0.95, "decay rate of both means", high=1.0, closed=True)
    epsilon = Hyperparameter(1e-07, "added under both roots")
    new_delta_in_step: bool = choice(
        False,
        "move the variable by the mean of squared steps that already includes this step, as the kernel of"
        " `tf.train.AdadeltaOptimizer` did in TF 1.0 to 1.4",
    )

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (
            Slot("accumulated_grad", unit="gradient^2", nonnegative=True, few_bits=True),
            Slot("accumulated_delta_var", unit="(step/lr)^2", nonnegative=True, few_bits=True),
        )

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        rho = hyper["rho"]
        return {
            "lr": hyper["learning_rate"],
            "rho": rho,
            "one_minus_rho": 1.0 - rho,
            "epsilon": hyper["epsilon"],
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        rho, rest = c["rho"], c["one_minus_rho"]
        old_delta = slots["accumulated_delta_var"]
        accumulated = rho * slots["accumulated_grad"] + rest * xp.square(gradient)
        step = gradient * xp.sqrt(old_delta + c["epsilon"]) / xp.sqrt(accumulated + c["epsilon"])
        delta = rho * old_delta + rest * xp.square(step)
        if self.new_delta_in_step:
            step = gradient * xp.sqrt(delta + c["epsilon"]) / xp.sqrt(accumulated + c["epsilon"])
        return -c["lr"] * step, {"accumulated_grad": accumulated, "accumulated_delta_var": delta}
