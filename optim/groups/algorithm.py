"""The algorithms of several groups, as that of one optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from optim.algorithm import Algorithm
from optim.groups.selection import Selection
from optim.rule import Rule, Slot

if TYPE_CHECKING:
    from optim.groups.member_state import MemberState
    from optim.options.settings import Settings
    from optim.state.tracked import Tracked


@dataclass(frozen=True)
class Member:
    """The parts of one group that a step needs."""

    algorithm: Algorithm
    state: MemberState
    settings: Settings


@dataclass(frozen=True, eq=False)
class Composite(Algorithm):
    """What updates each variable is the algorithm of its group."""

    selection: Selection = field(default_factory=lambda: Selection(()))
    members: Sequence[Member] = ()

    @property
    def has_rule(self) -> bool:
        return True

    def rule_of(self, tracked: Tracked) -> Rule | None:
        return self.members[self.selection.of(tracked)].algorithm.rule

    @property
    def updating_rules(self) -> tuple[Rule, ...]:
        return tuple(rule for member in self.members for rule in member.algorithm.updating_rules)

    def owner_of(self, rule: Rule | None) -> str:
        return next((m.algorithm.owner for m in self.members if m.algorithm.rule is rule), self.owner)

    @property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(dict.fromkeys(slot for member in self.members for slot in member.algorithm.slots))

    @property
    def scalars(self) -> Mapping[str, float]:
        return {}  # each member keeps those of its algorithm

    def check_has_config(self) -> None:
        for member in self.members:
            member.algorithm.check_has_config()
