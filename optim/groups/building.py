"""Building and stepping of several groups on TensorFlow, which belong to the whole and not to its members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optim.errors import UnsupportedError
from optim.groups.algorithm import Composite
from optim.groups.preparation import GroupsPreparation
from optim.state.tracked import plain_name
from optim.step.building import Builder
from optim.step.stepping import Stepper


class GroupsBuilder(Builder):
    """The slots of all groups."""

    _algorithm: Composite

    def build(self, var_list: Sequence[Any]) -> None:
        selection, tracked = self._algorithm.selection, self._state.tracked
        selection.check(tracked[v].names if v in tracked else (plain_name(v),) for v in var_list)
        selection.add(self._state.track(var_list))
        super().build(var_list)


class MemberBuilder(Builder):
    """The slots of one group, which the whole makes."""

    def build(self, var_list: Sequence[Any]) -> None:
        raise UnsupportedError(_OF_WHOLE)


class NoSteps:
    """In place of the steps of a member."""

    def __init__(self, whole: Stepper):
        self.execution = whole.execution

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedError(_OF_WHOLE)


_OF_WHOLE = "this optimizer is a member of Groups, which builds, steps and clips for all: call the same of the Groups"


def let_step(groups: Any) -> None:
    """Give an optimizer of several groups, which is being made, its builder and its steps."""
    algorithm, state, settings = groups._algorithm, groups._state, groups._settings
    groups._builder = GroupsBuilder(algorithm, state, settings)
    groups._stepper = Stepper(algorithm, state, settings, groups.build, GroupsPreparation)
    for member in groups.members:
        member._builder = MemberBuilder(member._algorithm, member._state, member._settings)
        member._stepper = NoSteps(groups._stepper)
