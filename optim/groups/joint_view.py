"""The learning rate of the main group as a variable that moves the rates of the other groups when it is assigned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from optim.float32_view import Float32View
from optim.groups.proportion import IS_ZERO, factor_between


class JointView(Float32View):
    """`Float32View` of the main group's rate."""

    def __init__(self, exact: tf.Variable, others: Callable[[], Sequence[tf.Variable]]):
        super().__init__(exact)
        self.__dict__["_others"] = others

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """As `Float32View.assign`. Raises HyperparameterError: the rate is 0, so that no factor leads to another."""
        return self._move_all(lambda: super(JointView, self).assign(value, *args, **kwargs))

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        return self._move_all(lambda: super(JointView, self).assign_add(delta, *args, **kwargs))

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        return self._move_all(lambda: super(JointView, self).assign_sub(delta, *args, **kwargs))

    def __reduce__(self) -> Any:
        return Float32View, (self.exact,)

    def _move_all(self, assign: Callable[[], Any]) -> Any:
        others = self.__dict__["_others"]()
        before = self.exact.read_value()
        _check_not_zero(before)
        result = assign()
        factor = self.exact.read_value() / before
        for other in others:
            other.assign(other.read_value() * factor)
        return result


def _check_not_zero(before: Any) -> None:
    if not tf.executing_eagerly():
        tf.debugging.assert_greater(before, tf.zeros_like(before), IS_ZERO)
    else:
        factor_between(float(before), 1.0)
