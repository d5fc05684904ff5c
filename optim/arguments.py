"""A rule's declarations of its arguments: numbers that may change from step to step, fixed choices, and the checks and
types of both. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Protocol

from optim.errors import HyperparameterError


class Scalar(Protocol):
    """A scalar tensor, a variable or a number of NumPy, for type checkers."""

    @property
    def dtype(self) -> Any: ...

    @property
    def shape(self) -> Any: ...


class Schedule(Protocol):
    """A learning-rate schedule of `optim`, of Keras or of tf_keras, for type checkers."""

    def __call__(self, step: Any, /) -> Any: ...

    def get_config(self) -> Any: ...


Number = float | Scalar | Callable[[], Any]
"""Type of a hyperparameter."""
LearningRate = Number | Schedule
"""Type of a learning rate."""


@dataclass(frozen=True)
class Hyperparameter:
    """A number of an algorithm that may change from step to step: declared in the body of a rule.

    Attributes:
      default: None if the caller must supply it.
      meaning: for the docstring.
      low: the least value allowed. high: the upper bound, excluded unless `closed`; None for no bound.
      keyword: whether the public signature accepts it only by keyword.
    """

    default: float | None
    meaning: str
    low: float = 0.0
    high: float | None = None
    closed: bool = False
    keyword: bool = False

    def check(self, name: str, number: float) -> float:
        """Return `number` if it is in range. Raises HyperparameterError."""
        below = self.high is None or number < self.high or (self.closed and number == self.high)
        if math.isfinite(number) and self.low <= number and below:
            return number
        raise HyperparameterError(f"{name} must be {self.bounds}, got {number!r}")

    @property
    def bounds(self) -> str:
        """Return the range in words."""
        if self.high is not None:
            closing = "]" if self.closed else ")"
            return f"in [{self.low:g}, {self.high:g}{closing}" if math.isfinite(self.low) else f"<= {self.high:g}"
        return "finite" if self.low == -math.inf else f">= {self.low:g}" if self.low != math.ulp(0.0) else "> 0"


LEARNING_RATE = "float >= 0, scalar tensor, schedule or zero-argument callable"


def rate(default: float = 0.001, meaning: str = LEARNING_RATE) -> Hyperparameter:
    """Declare the learning rate, which every rule declares first."""
    return Hyperparameter(default, meaning)


@dataclass(frozen=True)
class Choice:
    """A structural choice of an algorithm, fixed when the optimizer is made; a field of its rule. See `choice`."""

    default: Any
    meaning: str
    check: Callable[[str, Any], Any]
    keyword: bool


def flag(name: str, value: Any) -> bool:
    """Check for True or False."""
    return bool(value)


def boolean(name: str, value: Any) -> bool:
    """Check for True or False; 1 and 0 are invalid. Raises HyperparameterError."""
    if not isinstance(value, bool):
        raise HyperparameterError(f"{name} must be True or False, got {value!r}")
    return value


def optional_flag(name: str, value: Any) -> bool | None:
    """Check for True, False, or None to let the algorithm decide."""
    return None if value is None else bool(value)


def fixed_number(name: str, value: Any) -> float:
    """Check for a finite number >= 0. Raises HyperparameterError."""
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise HyperparameterError(f"{name} must be a finite number >= 0, got {value!r}")
    return number


def optional_number(name: str, value: Any) -> float | None:
    """Check for a finite number >= 0, or None."""
    return None if value is None else fixed_number(name, value)


def count(name: str, value: Any, most: int = 2**31 - 1) -> int:
    """Check for an integer from 1 to `most`. Raises HyperparameterError."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= int(value) <= most:
        raise HyperparameterError(f"{name} must be an integer from 1 to {most}, got {value!r}")
    return int(value)


def iterations(name: str, value: Any) -> int:
    """Check for a count of iterations within one step. Raises HyperparameterError."""
    return count(name, value, 1000)


def one_of(*words: str) -> Callable[[str, Any], str]:
    """Return a check that accepts one of these words."""

    def check(name: str, value: Any) -> str:
        if value not in words:
            raise HyperparameterError(f"{name} must be one of {', '.join(map(repr, words))}, got {value!r}")
        return str(value)

    return check


CLIP_ORDERS = ("value_first", "norm_first")
"""Options of clipping: `clipvalue` and a norm, see `GradientsClipOption`."""


def patterns(name: str, values: Any) -> tuple[str, ...]:
    """Check for regular expressions of variable names. Raises HyperparameterError."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise HyperparameterError(f"{name} must be a list of regular expressions, got {values!r}")
    for value in values:
        try:
            re.compile(value)
        except (re.error, TypeError) as error:
            raise HyperparameterError(f"{name}: {value!r} is no regular expression: {error}") from error
    return tuple(values)


def choice(default: Any, meaning: str, check: Callable[[str, Any], Any] = flag, *, keyword: bool = True) -> Any:
    """Declare a structural choice as a field of a rule.

    Args:
      default: that of the public signature. meaning: for the docstring.
      check: (name, value) -> the value for the rule and `get_config`; raises HyperparameterError.
      keyword: whether the public signature accepts it only by keyword.
    """
    return field(default=default, metadata={"choice": Choice(default, meaning, check, keyword)})


def used(momentum: Any) -> bool:
    """Whether a momentum, which may be a tensor or a callable, may differ from 0."""
    return momentum != 0.0 if isinstance(momentum, float) else True
