"""Find what variables and slots of Ftrl prove about its config.

Ftrl's variable is a function of its slots: |z| <= l1 -> 0, else (sign(z)·l1 - z) / (n^-p / lr + 2·l2), with the rate of
the last step. Source: `ResourceApplyFtrl` and `ResourceApplyFtrlV2` of TF 2.4 and 2.9, `ftrl.py` of Keras 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from migrate.algorithms.arguments import Arguments
from migrate.algorithms.ftrl import ACCUMULATOR, IN_LINEAR, LINEAR, STRENGTHS
from migrate.algorithms.spec import AVERAGE
from migrate.bytes.arrays import LazyArray, widened
from migrate.claims import DEFAULT, FILE, SET, confirming
from migrate.errors import ContradictionError, MissingHintError
from migrate.models import constraints
from migrate.state import Stored

Numbers = tuple[np.ndarray, np.ndarray, np.ndarray]
CLOSE = 1e-4
"""Relative tolerance for a variable: float32 powers and a division."""


def ftrl(
    arguments: Arguments, slots: Mapping[str, Mapping[str, LazyArray]], stored: Stored, iterations: int | None
) -> Arguments:
    """Find out whether `linear` is multiplied by the learning rate, if a state of Ftrl shows it.

    A constraint changes a variable after the step. Such a variable may not follow from its slots, and the next step
    from them is still right. If no model shows whether there are constraints, and others follow, the result is a
    warning.

    Raises:
      ContradictionError: the variables do not follow from the slots, so that a hyperparameter is wrong.
      MissingHintError: the same, if the source does not show how the variables are regularized.
    """
    rate = arguments.values.get("learning_rate")
    certain = arguments.origins.get("learning_rate")
    if not isinstance(rate, (int, float)) or not rate or (certain is not None and certain.kind == SET):
        return arguments
    read = _read(slots, stored)
    if not read:
        return arguments
    arguments = arguments.copy()
    last = rate / (1 + arguments.values.get("decay", 0.0) * max((iterations or 0) - 1, 0))
    off = {
        flag: {n: _off(arguments.values, last, *arrays, flag) for n, arrays in read.items()} for flag in (False, True)
    }
    ties = _constrained(stored)
    free = {n for n in read if n not in stored.constrained and not any(tie.is_of(n, nearest=False) for tie in ties)}
    fitting = {flag: {n for n in read if off[flag][n] <= CLOSE} for flag in off}
    whole = [flag for flag in off if free <= fitting[flag]] if free else []
    proven = [flag for flag in (whole or off) if fitting[flag]]
    if len(proven) == 1:
        known = arguments.origins.get(IN_LINEAR)
        arguments.values[IN_LINEAR] = proven[0]
        if known is not None:
            where = "the variables follow from the slots only so"
            arguments.origins[IN_LINEAR] = replace(known, value=proven[0], kind=FILE, where=where, doubt="", confirm="")
    if whole or not free:
        return arguments
    worst = max(free, key=lambda n: min(off[flag][n] for flag in off))
    _warn(arguments, rate, worst, off[False][worst], is_certain=stored.model is not None or not proven)
    return arguments


def _warn(arguments: Arguments, rate: float, name: str, distance: float, is_certain: bool) -> None:
    """Warn that a variable does not follow from its slots. Raises if that is certain, or if a setting is assumed."""
    guessed = [
        key
        for key in (*STRENGTHS[:2], "beta")
        if (origin := arguments.origins.get(key)) is not None and origin.kind == DEFAULT
    ]
    which = "its default regularization" if guessed else "the regularization of the config"
    differs = (
        f"with learning_rate {rate:.7g} and {which} Ftrl's slots make another variable {name} than the source holds,"
        f" by {distance:.2g} of it"
    )
    if guessed:
        forms = " ".join(f"--set {key}=VALUE" for key in guessed)
        decide = f"{confirming('learning_rate', rate)} if the rate changed or a constraint changed the variable"
        raise MissingHintError(f"{differs}. Set it with {forms}, or override with {decide}")
    text = f"{differs}: one of these is of another run, the learning rate changed, or a constraint changed the variable"
    confirm = confirming("learning_rate", rate)
    if is_certain:
        raise ContradictionError(f"{text}. Override with {confirm}")
    arguments.doubt("learning_rate", text, confirm=confirm)


def _read(slots: Mapping[str, Mapping[str, LazyArray]], stored: Stored) -> dict[str, Numbers]:
    """Return value, accumulator and linear of each variable that follows from these."""
    values = {v.name: v.array for v in stored.variables if v.array is not None}
    named = [name for name in slots.get(LINEAR, {}) if name in values and name in slots.get(ACCUMULATOR, {})]
    read = {n: (_numbers(values[n]), _numbers(slots[ACCUMULATOR][n]), _numbers(slots[LINEAR][n])) for n in named}
    read = {n: (w, a, z) for n, (w, a, z) in read.items() if z.any() and all(np.isfinite(x).all() for x in (w, a, z))}
    averages = slots.get(AVERAGE.name, {})
    return {n: x for n, x in read.items() if n not in averages or not np.array_equal(_numbers(averages[n]), x[0])}


def _constrained(stored: Stored) -> list[constraints.Tie]:
    return list(constraints.of_model(stored.model.config)) if stored.model is not None else []


def _numbers(array: LazyArray) -> np.ndarray:
    return widened(array.load(), array.dtype)


def _off(values: Mapping[str, Any], rate: float, w: np.ndarray, n: np.ndarray, z: np.ndarray, scaled: bool) -> float:
    """Return a variable's distance from the value that its slots give, relative to its largest number."""
    power = -float(values.get("learning_rate_power", -0.5))
    l1 = float(values.get("l1_regularization_strength") or 0.0)
    l2 = float(values.get("l2_regularization_strength") or 0.0) + float(values.get("beta") or 0.0) / (2 * rate)
    taken = z != 0  # rows that no step has updated still have their initial values
    z = z[taken] / (rate if scaled else 1.0)
    with np.errstate(all="ignore"):
        expected = (np.clip(z, -l1, l1) - z) / (n[taken] ** power / rate + 2 * l2)
    worst = float(np.max(np.abs(expected - w[taken])) / max(float(np.max(np.abs(w[taken]))), 1e-30))
    return worst if np.isfinite(worst) else float("inf")
