"""The algorithms of an optimizer on another backend than TensorFlow: one, or those of `optim.Groups`, in a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optim import slot_layout
from optim.algorithm import Algorithm
from optim.groups.algorithm import Composite
from optim.keras.step_values import Arrays, Scalars, Tracked
from optim.options.settings import Settings


@dataclass(frozen=True)
class RuleGroup:
    """One algorithm, with the variables that it updates.

    Attributes:
      is_main: whether its learning rate is the one that Keras knows.
      rate_key: under which name a constant learning rate is kept.
      key: under which name a scalar of the algorithm is kept.
      tracked: the variables, also those that are added later.
    """

    algorithm: Algorithm
    settings: Settings
    is_main: bool
    rate_key: str
    key: Callable[[str], str]
    tracked: Sequence[Tracked]

    def scalars_of(self, now: Arrays) -> Arrays:
        """The scalars of the algorithm, by its own names."""
        return {name: now[self.key(name)] for name in self.algorithm.scalars}


def rule_groups(algorithm: Algorithm, settings: Settings, tracked: Any) -> list[RuleGroup]:
    """The group of all variables, or those of `optim.Groups`, whose last one has the rate of the whole."""
    if not isinstance(algorithm, Composite):
        return [RuleGroup(algorithm, settings, True, slot_layout.LEARNING_RATE, str, tracked)]
    main = algorithm.members[algorithm.selection.main]
    return [
        RuleGroup(
            member.algorithm,
            member.settings,
            member is main,
            member.state.key(slot_layout.LEARNING_RATE),
            member.state.key,
            member.state.tracked,  # type: ignore[arg-type]
        )
        for member in algorithm.members
    ]


class JointScalars:
    """`Scalars` of several groups, each for its variables."""

    def __init__(self, groups: Sequence[tuple[RuleGroup, Scalars]]):
        self._groups = groups
        self._of: Mapping[int, Scalars] = {t.index: scalars for group, scalars in groups for t in group.tracked}
        self.overwrite = groups[0][1].overwrite

    def of(self, tracked: Tracked) -> tuple[Mapping[str, Any], Any]:
        return self._of[tracked.index].of(tracked)

    def momenta(self, tracked: Tracked) -> tuple[Any, Any]:
        return self._of[tracked.index].momenta(tracked)

    def new_scalars(self, now: Arrays) -> Arrays:
        values: Arrays = {}
        for group, scalars in self._groups:
            values |= {group.key(name): value for name, value in scalars.new_scalars(group.scalars_of(now)).items()}
        return values
