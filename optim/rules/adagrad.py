"""Adagrad.

    a ← a + g²        p ← p − lr · g / √(a + ε),  or, with ε outside the root,  p ← p − lr · g / (√a + ε)

with a = `accumulator`. Duchi, Hazan & Singer, "Adaptive Subgradient Methods" (2011), the diagonal update of figure 1.
ε is inside the root in the experimental optimizers of 2.9 and from Keras 2.11 to 3 (`optimizers/adagrad.py`); outside
in Keras 1.0.3 to 2.3 (a starts at 0) and in OptimizerV2 (`optimizer_v2/adagrad.py`, a starts at 0.1);
`tf.train.AdagradOptimizer` has none (0.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optim.rule import Arrays, Elementwise, Scalars, Slot


@dataclass(frozen=True)
class AdagradRule(Elementwise):
    epsilon_inside: bool = True
    initial_accumulator_value: float = 0.1

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot("accumulator", unit="gradient^2", initial=self.initial_accumulator_value),)

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        return {"lr": hyper["learning_rate"], "epsilon": hyper["epsilon"]}

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        accumulator = slots["accumulator"] + xp.square(gradient)
        if self.epsilon_inside:
            root = xp.sqrt(accumulator + c["epsilon"])
        else:
            root = xp.sqrt(accumulator) + c["epsilon"]
        return -c["lr"] * gradient / root, {"accumulator": accumulator}
