"""LAMB: Adam's step of each variable, scaled to the variable's own norm.

    m ← β₁·m + (1−β₁)·g        v ← β₂·v + (1−β₂)·g²
    u = m/(1−β₁ᵗ) / (√(v/(1−β₂ᵗ)) + ε)        p ← p − lr · ‖p‖/‖u‖ · u,  and p ← p − lr·u where a norm is 0

You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (2020), algorithm 2 with φ the
identity and without its λ·p inside u: as in Keras 3 (`optimizers/lamb.py`) weights decay before the step, by
the option `weight_decay` of every optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optim.rule import Arrays, Scalars, Slot, Whole


@dataclass(frozen=True)
class LambRule(Whole):
    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot("m", unit="gradient"), Slot("v", unit="gradient^2"))

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        beta_1, beta_2 = hyper["beta_1"], hyper["beta_2"]
        return {
            "lr": hyper["learning_rate"],
            "m_correction": 1.0 / (1.0 - beta_1**step),
            "v_correction": 1.0 / (1.0 - beta_2**step),
            "one_minus_beta_1": 1.0 - beta_1,
            "one_minus_beta_2": 1.0 - beta_2,
            "epsilon": hyper["epsilon"],
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        m = slots["m"] + c["one_minus_beta_1"] * (gradient - slots["m"])
        v = slots["v"] + c["one_minus_beta_2"] * (xp.square(gradient) - slots["v"])
        direction = c["m_correction"] * m / (xp.sqrt(c["v_correction"] * v) + c["epsilon"])
        size, length = _norm(xp, variable), _norm(xp, direction)
        one = xp.ones_like(length)
        # Where u is 0, so is the step, whatever the ratio.
        trust = xp.where(size > 0, size / xp.where(length > 0, length, one), one)
        return -(c["lr"] * trust) * direction, {"m": m, "v": v}


def _norm(xp: Any, x: Any) -> Any:
    return xp.sqrt(xp.reduce_sum(xp.square(x)))
