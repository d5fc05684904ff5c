"""A gradient that is the sum of several, and a rule's maths on it (`repeated_rows`)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

POWERS: Mapping[str, Callable[[Any], Any]] = {"square": lambda x: x * x, "abs": abs}
"""Functions of each gradient before the sum: those with f(c·g) = f(c)·f(g)."""


class SummedGradient:
    """A gradient that is the sum of several, times a `factor`: a rule computes with the sum and with sums of powers.

    Products with other arrays apply to each gradient; everything else in a rule applies to the sum. Keras 3's
    operations on `IndexedSlices` do the same (backend/tensorflow/sparse.py).

    Args:
      power: returns the sum of a power of each, by its name in `POWERS`.
    """

    __array_ufunc__ = None  # NumPy scalars leave arithmetic to this class

    def __init__(self, total: Any, power: Callable[[str], Any], factor: Any = None):
        self.total = total
        self._power = power
        self._factor = factor

    def power(self, name: str) -> Any:
        power_ = self._power(name)
        return power_ if self._factor is None else power_ * POWERS[name](self._factor)

    def map(self, function: Callable[[Any], Any]) -> SummedGradient:
        """Return the same with `function` applied to the sum, and to the sum of each power."""
        return SummedGradient(function(self.total), lambda name: function(self._power(name)), self._factor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.total, name)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, SummedGradient):
            return self.power("square") if other is self else self.total * other.total
        return SummedGradient(self.total * other, self._power, other if self._factor is None else self._factor * other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> SummedGradient:
        divisor = summed(other)
        return SummedGradient(
            self.total / divisor, self._power, (1.0 if self._factor is None else self._factor) / divisor
        )

    def __neg__(self) -> SummedGradient:
        return SummedGradient(-self.total, self._power, self._factor)

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
    """Return an array; for `SummedGradient` of several, their sum."""
    return value.total if isinstance(value, SummedGradient) else value


class NamespaceOfSums:
    """The `xp` of a rule that computes with `SummedGradient`, made from its usual `xp`."""

    _OPERATORS: Mapping[str, Callable[..., Any]] = {
        "multiply": operator.mul,
        "divide": operator.truediv,
        "negative": operator.neg,
        "power": operator.pow,
        "pow": operator.pow,
        "abs": abs,
        "square": lambda gradient: gradient.power("square"),
    }

    def __init__(self, xp: Any):
        self._xp = xp

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._xp, name)
        if not callable(function):
            return function

        def on_each(*args: Any, **kwargs: Any) -> Any:
            if name in self._OPERATORS and any(isinstance(arg, SummedGradient) for arg in args):
                return self._OPERATORS[name](*args)
            return function(*map(summed, args), **{key: summed(value) for key, value in kwargs.items()})

        return on_each
