"""Rectified Adam's additions to Adam, shared by several rules: when v is reliable, and a warm-up.

    ρ∞ = 2/(1−β₂) − 1        ρ_t = ρ∞ − 2t·β₂ᵗ/(1−β₂ᵗ)        r = √( (ρ_t−4)(ρ_t−2)ρ∞ / ((ρ∞−4)(ρ∞−2)ρ_t) )

Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond" (2020), algorithm 2.
"""

from __future__ import annotations

import math
from typing import Any

from optim.arguments import Hyperparameter, choice
from optim.rules.powers import power, rounded

SMA_THRESHOLD = Hyperparameter(
    5.0, "least ρ_t with which the second moment is used; below it a step is lr·m/(1−β₁ᵗ)", low=-math.inf
)
TOTAL_STEPS = Hyperparameter(0.0, "length of the schedule below, in steps; 0 for a learning rate without it")
WARMUP_PROPORTION = Hyperparameter(
    0.1, "part of `total_steps` in which the learning rate grows from 0 by equal steps", high=1.0, closed=True
)
MIN_LR = Hyperparameter(
    0.0, "final value, which the learning rate reaches by equal steps after the warm-up, at `total_steps`"
)


def lazy_rows_keep_slots() -> Any:
    """Declare the choice of what happens to the slots of rows that `lazy_rows` leaves out."""
    return choice(
        True,
        "False: in rows that `lazy_rows` leaves out, the slots decay anyway, as in the sparse steps of Addons",
    )


def rectification(
    xp: Any, beta_2: Any, step: Any, threshold: Any, in_float32: bool | str = False, inverted: bool = False
) -> tuple[Any, Any]:
    """Return whether the second moment is used, as 1.0 or 0.0, and the factor of the step: r, or 1 if it is not used.

    ρ_t is the small difference of two numbers near ρ∞, so after few steps its error in float32 is up to 1 %.

    Args:
      in_float32: the choice of the powers; unless False, every operation for ρ_t is rounded to float32, too.
      inverted: divide by 1 − β₂ᵗ as Addons' RectifiedAdam does, by a multiplication with its inverse.
    """
    to = (lambda number: rounded(xp, number)) if in_float32 else (lambda number: number)
    falling = power(xp, beta_2, step, in_float32)
    rest, weight = to(1.0 - falling), to(2.0 * step * falling)
    longest = to(to(2.0 / to(1.0 - to(beta_2))) - 1.0)
    length = to(longest - to(weight * to(1.0 / rest) if inverted else weight / rest))
    squared = (length - 4.0) / (longest - 4.0) * (length - 2.0) / (longest - 2.0) * longest / length
    is_used = length >= threshold
    one = xp.ones_like(length)
    return xp.where(is_used, one, 0.0 * one), xp.where(is_used, xp.sqrt(xp.maximum(squared, 0.0)), one)


def warmed(xp: Any, hyper: Any, step: Any) -> Any:
    """Return the learning rate of this step, by `total_steps`, `warmup_proportion` and `min_lr`."""
    one = xp.ones_like(step)  # makes float64 tensors of floats, which TensorFlow would convert to float32
    rate, total = hyper["learning_rate"] * one, hyper["total_steps"] * one
    warmup = total * hyper["warmup_proportion"]
    falling = xp.maximum(total - warmup, 1.0)
    down = rate + (hyper["min_lr"] - rate) * xp.minimum(step - warmup, falling) / falling
    scheduled = xp.where(step <= warmup, rate * step / xp.maximum(warmup, 1e-30), down)
    return xp.where(total > 0.0, scheduled, rate)
