"""The learning rate of several groups, as that of one optimizer: for callbacks, which know one only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from optim import lazy
from optim.errors import UnsupportedError
from optim.groups.proportion import factor_between
from optim.options import rate
from optim.options.base import Part
from optim.options.rate import Rate

if TYPE_CHECKING:
    from optim.groups import joint_view
else:
    joint_view = lazy.modules("optim.groups.joint_view")


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
        rate = self._main.read()
        return joint_view.JointView(rate.exact, self._constants) if self._main.is_constant else rate

    def replace(self, value: Any) -> None:
        """What setting `Groups.learning_rate` to a number does.

        Raises:
          UnsupportedError: another kind of rate, which belongs to a group. TypeError: a rate is no number.
          HyperparameterError: the rate is 0 now.
        """
        parsed = rate.parse(value)
        if not isinstance(parsed, float):
            raise UnsupportedError(
                "a schedule or callable belongs to one group: set optimizer.members[i].learning_rate instead"
            )
        others = self._constants()
        if lazy.is_variable(self.source):
            self.read().assign(parsed)
            return
        factor = factor_between(self.source, parsed)
        for part, before in zip(self._others, others, strict=True):
            part.keep(before * factor)
        self._main.keep(parsed)

    def to_json(self) -> Any:
        return self._main.to_json()

    def _constants(self) -> list[Any]:
        """The rates of the other groups: variables, or numbers on other backends. Raises TypeError: one is neither."""
        if not all(part.is_constant for part in (self._main, *self._others)):
            raise TypeError(
                "the learning rate of a group is a schedule, a callable or a variable of the program, which does not"
                " follow a number; set optimizer.members[i].learning_rate of each group instead"
            )
        return [part.source for part in self._others]
