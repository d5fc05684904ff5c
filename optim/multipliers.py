"""Factors of the learning rate by variable: `learning_rate_multipliers`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from optim.errors import HyperparameterError
from optim.hyperparameters import to_number
from optim.variables import Tracked, check_patterns, matches


def parse(value: Any) -> dict[str, float]:
    """Factors >= 0 by regular expression, Raises HyperparameterError."""
    argument = "learning_rate_multipliers"
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise HyperparameterError(f"{argument} must map regular expressions to factors, got {value!r}")
    check_patterns(argument, list(value))
    factors = {}
    for pattern, given in value.items():
        factor = to_number(f"{argument}[{pattern!r}]", given)
        if factor is None or not math.isfinite(factor) or factor < 0:
            raise HyperparameterError(f"{argument}[{pattern!r}] must be finite and >= 0, got {given!r}")
        factors[pattern] = factor
    return factors


def factor_of(multipliers: Mapping[str, float], tracked: Tracked) -> float:
    """The factor of a variable, 1 where no pattern matches its name.

    Raises:
      HyperparameterError: several patterns match, with different factors.
    """
    found = {pattern: factor for pattern, factor in multipliers.items() if matches([pattern], tracked)}
    if len(set(found.values())) > 1:
        raise HyperparameterError(
            f"learning_rate_multipliers is ambiguous for variable {tracked}: {found} all match its name; make the"
            " patterns exclude each other, with ^ and $ for example"
        )
    return next(iter(found.values()), 1.0)
