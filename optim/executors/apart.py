"""Gradients of rows that a batch has several times, one by one, and a rule's maths on them (`repeated_rows`)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from optim.layouts.placement import relayout
from optim.namespace import XP
from optim.native.direct import Held
from optim.precision import compute_dtype

POWERS: Mapping[str, Callable[[Any], Any]] = {"square": lambda x: x * x, "abs": abs}
"""What is taken of each gradient before they are summed: functions with f(c·g) = f(c)·f(g)."""


@dataclass(frozen=True)
class Slices:
    """`IndexedSlices`, not summed up: a gradient in `values`, in float32 at least, for each of `rows`."""

    values: Any
    rows: Any

    @classmethod
    def of(cls, given: tf.IndexedSlices) -> Slices:
        values, rows = tf.convert_to_tensor(given.values), tf.convert_to_tensor(given.indices)
        return cls(tf.cast(values, compute_dtype(values.dtype)), tf.cast(rows, tf.int64))

    def summed(self, power: str, count: int, layout: Any) -> Any:
        """That power of each, summed up by row, of all `count` rows."""
        return relayout(tf.math.unsorted_segment_sum(POWERS[power](self.values), self.rows, count), layout)


@dataclass(frozen=True)
class Apart:
    """What was done to the gradients of a call before the step.

    Attributes:
      is_settled: whether they are divided by the loss scale, and clipped.
      slices: those of which each is squared, by index of the variable.
      held: the gradients as dtopt's own kernel has them, where it took them all while they were checked.
    """

    is_settled: bool = False
    slices: Mapping[int, Slices] = field(default_factory=dict)
    held: Held | None = None


AS_GIVEN = Apart()
"""Nothing was done to them."""


class Each:
    """A gradient that is the sum of several, times a `factor`: a rule computes with the sum, and has powers of each.

    Products with other arrays are those of each; whatever else a rule does, it does to the sum. So do Keras 3's
    operations on `IndexedSlices` (backend/tensorflow/sparse.py).

    Args:
      power: gives the sum of a power of each, by its name in `POWERS`.
    """

    __array_ufunc__ = None  # NumPy scalars leave arithmetic to this class

    def __init__(self, total: Any, power: Callable[[str], Any], factor: Any = None):
        self.total = total
        self._power = power
        self._factor = factor

    def power(self, name: str) -> Any:
        found = tf.cast(self._power(name), self.total.dtype)
        return found if self._factor is None else found * POWERS[name](self._factor)

    def cast(self, dtype: tf.DType) -> Each:
        return Each(tf.cast(self.total, dtype), self._power, self._factor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.total, name)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Each):
            return self.power("square") if other is self else self.total * other.total
        return Each(self.total * other, self._power, other if self._factor is None else self._factor * other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Each:
        divisor = summed(other)
        return Each(self.total / divisor, self._power, (1.0 if self._factor is None else self._factor) / divisor)

    def __neg__(self) -> Each:
        return Each(-self.total, self._power, self._factor)

    def __abs__(self) -> Any:
        return self.power("abs")

    def __pow__(self, other: Any) -> Any:
        return self.power("square") if isinstance(other, (int, float)) and other == 2 else self.total**other

    def __add__(self, other: Any) -> Any:
        return self.total + summed(other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self.total - summed(other)

    def __rsub__(self, other: Any) -> Any:
        return other - self.total

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.total

    def __lt__(self, other: Any) -> Any:
        return self.total < summed(other)

    def __le__(self, other: Any) -> Any:
        return self.total <= summed(other)

    def __gt__(self, other: Any) -> Any:
        return self.total > summed(other)

    def __ge__(self, other: Any) -> Any:
        return self.total >= summed(other)


def summed(value: Any) -> Any:
    """An array, where it is `Each` of several their sum."""
    return value.total if isinstance(value, Each) else value


class _Namespace:
    """The `xp` of a rule that is given `Each`."""

    _OPERATORS: Mapping[str, Callable[..., Any]] = {
        "multiply": operator.mul,
        "divide": operator.truediv,
        "negative": operator.neg,
        "power": operator.pow,
        "pow": operator.pow,
        "abs": abs,
        "square": lambda each: each.power("square"),
    }

    def __getattr__(self, name: str) -> Any:
        function = getattr(XP, name)
        if not callable(function):
            return function

        def on_each(*args: Any, **kwargs: Any) -> Any:
            if name in self._OPERATORS and any(isinstance(arg, Each) for arg in args):
                return self._OPERATORS[name](*args)
            return function(*map(summed, args), **{key: summed(value) for key, value in kwargs.items()})

        return on_each


EACH_XP = _Namespace()
