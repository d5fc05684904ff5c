"""Adagrad.

    a ← a + g²        p ← p − lr · g / √(a + ε),  or, with ε outside the root,  p ← p − lr · g / (√a + ε)

with a = `accumulator`. Duchi, Hazan & Singer, "Adaptive Subgradient Methods" (2011), the diagonal update of figure 1.
ε is inside the root in the experimental optimizers of 2.9 and from Keras 2.11 to 3 (`optimizers/adagrad.py`); outside
in Keras 1.0.3 to 2.3 (a starts at 0) and in OptimizerV2 (`optimizer_v2/adagrad.py`, a starts at 0.1);
`tf.train.AdagradOptimizer` has no ε (a starts at 0.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, choice, fixed_number, rate
from optim.rule import Arrays, Rule, Scalars, Slot


@dataclass(frozen=True)
class AdagradRule(Rule):
    learning_rate = rate()
    initial_accumulator_value: float = choice(0.1, "initial value of `accumulator`, >= 0", fixed_number, keyword=False)
    epsilon = Hyperparameter(1e-07, "keeps the denominator from zero")
    epsilon_inside: bool = choice(
        True,
        "True divides by √(a + ε), as Keras does from 2.11 on; False by √a + ε, as OptimizerV2 and Keras before it"
        " (whose accumulators start at 0), and, with `epsilon=0`, `tf.train.AdagradOptimizer`",
    )

    @property
    def slots(self) -> tuple[Slot, ...]:
        start = self.initial_accumulator_value
        return (Slot("accumulator", unit="gradient^2", initial=start, nonnegative=True, few_bits=True),)

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        return {"lr": hyper["learning_rate"], "epsilon": hyper["epsilon"]}

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        accumulator = slots["accumulator"] + xp.square(gradient)
        if self.epsilon_inside:
            root = xp.sqrt(accumulator + c["epsilon"])
        else:
            root = xp.sqrt(accumulator) + c["epsilon"]
        return -c["lr"] * gradient / root, {"accumulator": accumulator}
