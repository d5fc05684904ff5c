"""Powers βᵗ of bias corrections, exact or as Keras forms them."""

from __future__ import annotations

from typing import Any

import numpy as np

from optim.arguments import choice

MEANING = (
    "True forms the powers βᵗ of the bias corrections in float32, from β rounded to float32, as every Keras does for"
    " float32 variables: 1 − 0.999ᵗ then has few digits. 1 − β in the means stays exact, as in Keras since the"
    " experimental classes of 2.9; OptimizerV2, Nadam and Keras before it round it, too, which is β = float32(β)"
)


def float32_powers() -> Any:
    """The choice that rules with bias corrections share."""
    return choice(False, MEANING)


def power(xp: Any, beta: Any, step: Any, in_float32: bool) -> Any:
    """βᵗ in float64; `in_float32`: of the rounded β, and rounded itself."""
    if not in_float32:
        return beta**step
    return rounded(xp, rounded(xp, beta) ** step)


def rounded(xp: Any, number: Any) -> Any:
    """A float64 number rounded to float32; of one operation on such numbers it is what float32 makes of them."""
    if isinstance(number, float):
        return float(np.float32(number))
    return xp.cast(xp.cast(number, "float32"), "float64")
