"""The learning rate of several groups, as that of one optimizer: for callbacks, which know one only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from optim import float32_view, lazy, schedules
from optim.errors import HyperparameterError, UnsupportedError
from optim.float32_view import Float32View
from optim.options import rate
from optim.options.part import Part
from optim.options.rate import Rate


class JointRate(Part):
    """The rate of the main group. Setting it multiplies the rates of the other groups by the same factor.

    Args:
      main: the rate of the last group. others: those of the other groups.
    """

    decay = 0.0

    def __init__(self, main: Rate, others: Sequence[Rate]):
        self._main = main
        self._others = others

    @property
    def source(self) -> Any:
        return self._main.source

    def read(self) -> Any:
        """As `Optimizer.learning_rate`, of the last group; to assign the variable of a constant rate moves all."""
        found = self._main.read()
        return JointView(found.exact, self._constants) if isinstance(found, Float32View) else found

    def replace(self, value: Any) -> None:
        """What setting `Groups.learning_rate` to a number does.

        Raises:
          UnsupportedError: another kind of rate, which belongs to a group. TypeError: a rate is a schedule.
        """
        parsed = rate.parse(value)
        if not isinstance(parsed, float):
            raise UnsupportedError(
                "a schedule or callable belongs to one group: set optimizer.members[i].learning_rate instead"
            )
        variable = self.read()
        if not isinstance(variable, JointView):
            raise TypeError(_NOT_A_NUMBER)
        variable.assign(parsed)

    def keep(self, parsed: Any) -> None:
        self.replace(parsed)

    def to_json(self) -> Any:
        return self._main.to_json()

    def _constants(self) -> list[tf.Variable]:
        """The variables of the other groups' rates. Raises TypeError: one has no variable."""
        sources = [part.source for part in self._others]
        if any(schedules.is_schedule(source) or not lazy.is_variable(source) for source in sources):
            raise TypeError(_NOT_A_NUMBER)
        return [float32_view.exact(source) for source in sources]


_NOT_A_NUMBER = (
    "the learning rate of a group is a schedule or callable, which does not follow a number; set"
    " optimizer.members[i].learning_rate of each group instead"
)


class JointView(Float32View):
    """The rate of the main group as programs see it; what is assigned to it moves the rates of the other groups."""

    def __init__(self, exact: tf.Variable, others: Any):
        super().__init__(exact)
        self.__dict__["_others_of"] = others

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """As `Float32View.assign`. Raises HyperparameterError: the rate is 0, so that no factor leads to another."""
        return self._move_all(lambda: super(JointView, self).assign(value, *args, **kwargs))

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        return self._move_all(lambda: super(JointView, self).assign_add(delta, *args, **kwargs))

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        return self._move_all(lambda: super(JointView, self).assign_sub(delta, *args, **kwargs))

    def __reduce__(self) -> Any:
        return Float32View, (self.exact,)

    def _move_all(self, assign: Any) -> Any:
        others = self.__dict__["_others_of"]()
        before = self.exact.read_value()
        _check_not_zero(before)
        result = assign()
        factor = self.exact.read_value() / before
        for other in others:
            other.assign(other.read_value() * factor)
        return result


def _check_not_zero(before: Any) -> None:
    text = "learning_rate is 0, so that the rates of the other groups cannot follow it: set that of each of `members`"
    if tf.executing_eagerly():
        if float(before) == 0.0:
            raise HyperparameterError(text)
    else:
        tf.debugging.assert_greater(before, tf.zeros_like(before), text)
