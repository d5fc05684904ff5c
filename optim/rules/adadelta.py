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

from optim.rule import Arrays, Elementwise, Scalars, Slot


@dataclass(frozen=True)
class AdadeltaRule(Elementwise):
    new_delta_in_step: bool = False

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (
            Slot("accumulated_grad", unit="gradient^2"),
            Slot("accumulated_delta_var", unit="(step/lr)^2"),
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
