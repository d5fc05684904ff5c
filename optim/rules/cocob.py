"""COCOB-Backprop: each number bets on its gradients with its past wins; there is no learning rate to choose.

    L ← max(L, |g|)        G ← G + |g|        θ ← θ + g        R ← max(R − g·w, 0)
    w' = −θ / (L·max(G + L, α·L)) · (R + L)        p ← p + lr·(w' − w)        w ← w'

with L = `largest_gradient`, G = `gradient_norm_sum`, θ = `gradient_sum`, R = `reward`, and w = `bet`, how far p has
come. Orabona & Tommasi, "Training Deep Networks without Learning Rates Through Coin Betting" (2017), algorithm 2, where
lr is 1; `COCOB` of TensorFlow Addons 0.19 (`optimizers/cocob.py`), where L starts at 1e-8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optim.arguments import LEARNING_RATE, Hyperparameter
from optim.rule import Arrays, Rule, Scalars, Slot


@dataclass(frozen=True)
class COCOBRule(Rule):
    learning_rate = Hyperparameter(1.0, f"{LEARNING_RATE}: the factor of steps", keyword=True)
    alpha = Hyperparameter(100.0, "limits the first steps", low=1.0)

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (
            Slot("largest_gradient", unit="gradient", initial=1e-8, nonnegative=True),
            Slot("gradient_norm_sum", unit="gradient", nonnegative=True),
            Slot("gradient_sum", unit="gradient"),
            Slot("bet", unit="step/lr"),
            Slot("reward", unit="gradient*step/lr", nonnegative=True),
        )

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        size = xp.abs(gradient)
        largest = xp.maximum(slots["largest_gradient"], size)
        norms, total = slots["gradient_norm_sum"] + size, slots["gradient_sum"] + gradient
        reward = xp.maximum(slots["reward"] - gradient * slots["bet"], 0.0)
        limit = xp.maximum(norms + largest, c["alpha"] * largest)
        bet = -total / (largest * limit) * (reward + largest)
        new = {
            "largest_gradient": largest,
            "gradient_norm_sum": norms,
            "gradient_sum": total,
            "bet": bet,
            "reward": reward,
        }
        return c["learning_rate"] * (bet - slots["bet"]), new
