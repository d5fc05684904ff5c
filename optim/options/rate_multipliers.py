"""Factors of the learning rate by variable: `learning_rate_multipliers`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from optim.arguments import patterns
from optim.errors import HyperparameterError
from optim.hyperparameters import to_number
from optim.options.base import Option, Part
from optim.state.names import matches

if TYPE_CHECKING:
    from optim.state.state import State
    from optim.state.tracked import Tracked, TrackedVariables


class RateMultipliers(Part):
    """The factors of those variables that an optimizer knows, and of those that it will know."""

    options: ClassVar = {
        "learning_rate_multipliers": Option(
            None,
            "maps regular expressions to factors >= 0. In a variable whose name one of them matches"
            " (`re.search`), the learning rate counts that many times wherever it enters, weight decay included."
            " With 0 the slots move and the variable stays. Patterns with different factors that match one"
            " variable are an error",
        ),
    }

    def __init__(self, value: Any, tracked: TrackedVariables):
        self._factors = _parse(value)
        self._tracked = tracked
        self._by_variable: dict[int, float] = {}
        self._all = {1.0}

    @property
    def learning_rate_multipliers(self) -> dict[str, float] | None:
        return dict(self._factors) or None

    def change(self, name: str, value: Any) -> None:
        factors = _parse(value)
        self._by_variable = {t.index: _factor_of(factors, t) for t in self._tracked}
        self._factors = factors
        self._all = set(self._by_variable.values()) or {1.0}

    def join(self, state: State, accumulation: Any) -> None:
        self._tracked = state.tracked

    def add(self, new: Sequence[Tracked]) -> None:
        """Find the factors of variables. Raises HyperparameterError if one is ambiguous."""
        self._by_variable.update({t.index: _factor_of(self._factors, t) for t in new})
        self._all = set(self._by_variable.values()) or {1.0}

    def factor(self, tracked: Tracked) -> float:
        return self._by_variable.get(tracked.index, 1.0)

    def all_factors(self) -> set[float]:
        """Those that occur."""
        return self._all


def _parse(value: Any) -> dict[str, float]:
    """Factors >= 0 by regular expression. Raises HyperparameterError."""
    argument = "learning_rate_multipliers"
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise HyperparameterError(f"{argument} must map regular expressions to factors, got {value!r}")
    patterns(argument, list(value))
    factors = {}
    for pattern, number in value.items():
        factor = to_number(f"{argument}[{pattern!r}]", number)
        if factor is None or not math.isfinite(factor) or factor < 0:
            raise HyperparameterError(f"{argument}[{pattern!r}] must be finite and >= 0, got {number!r}")
        factors[pattern] = factor
    return factors


def _factor_of(multipliers: Mapping[str, float], tracked: Tracked) -> float:
    """The factor of a variable, 1 where no pattern matches its name.

    Raises:
      HyperparameterError: several patterns match, with different factors.
    """
    factors = {pattern: factor for pattern, factor in multipliers.items() if matches([pattern], tracked)}
    if len(set(factors.values())) > 1:
        raise HyperparameterError(
            f"learning_rate_multipliers is ambiguous for variable {tracked}: {factors} all match its name; make the"
            " patterns exclude each other, with ^ and $ for example"
        )
    return next(iter(factors.values()), 1.0)
