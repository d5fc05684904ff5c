"""Powers βᵗ of bias corrections, exact or as Keras and tf.train compute them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from optim.arguments import choice, flag, one_of

MULTIPLIED = "multiplied"
MEANING = (
    "True forms the powers βᵗ of the bias corrections in float32, from β rounded to float32, as every Keras does for"
    f" float32 variables: 1 − 0.999ᵗ then has few digits. {MULTIPLIED!r} multiplies by that β at each step and rounds,"
    " as tf.train does. 1 − β in the means stays exact, as in Keras since the experimental classes of 2.9; OptimizerV2,"
    " tf.train, Nadam and Keras before it round it, too, which is β = float32(β)"
)
KEPT = 1 << 14
"""Number of stored products; after that many steps they differ from the power by less than a rounding of the step."""


def float32_powers() -> Any:
    """Declare the choice that rules with bias corrections share."""
    return choice(False, MEANING, _form)


def power(xp: Any, beta: Any, step: Any, form: bool | str) -> Any:
    """Return βᵗ in float64; `form` is the choice: of the rounded β, and rounded itself, once or at each step.

    A β that changes from step to step, such as a tensor, has no product: its power is rounded once.
    """
    if not form:
        return beta**step
    narrow = rounded(xp, beta)
    at_once = rounded(xp, narrow**step)
    if form != MULTIPLIED or not isinstance(narrow, float):
        return at_once
    if isinstance(step, float):
        return float(_products(narrow)[int(step) - 1]) if step <= KEPT else at_once
    index = xp.cast(xp.minimum(step, float(KEPT)), "int64") - 1
    return xp.where(step <= KEPT, xp.gather(_products(narrow), index), at_once)


def rounded(xp: Any, number: Any) -> Any:
    """Round a float64 number to float32; for one operation on such numbers the result is that of float32."""
    if isinstance(number, float):
        return float(np.float32(number))
    return xp.cast(xp.cast(number, "float32"), "float64")


@lru_cache
def _products(beta: float) -> np.ndarray:
    """Return β, β·β, ..., each rounded to float32."""
    return np.multiply.accumulate(np.full(KEPT, beta, np.float32)).astype(np.float64)


def _form(name: str, value: Any) -> bool | str:
    return one_of(MULTIPLIED)(name, value) if isinstance(value, str) else flag(name, value)
