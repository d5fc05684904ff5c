"""The options of an optimizer of several groups: its own act on all of them, the others belong to its members."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optim.errors import HyperparameterError, UnsupportedError
from optim.groups.joint_rate import JointRate
from optim.groups.selection import Selection
from optim.options.accumulation import Accumulation
from optim.options.averages import Averages
from optim.options.base import Part
from optim.options.clipping import Clipping
from optim.options.executor import ExecutorChoice
from optim.options.loss_scale import LossScale
from optim.options.master_copies import MasterCopies
from optim.options.repeated_rows import RepeatedRows
from optim.options.settings import OPTIONS, Settings, with_options
from optim.options.slot_dtype import SlotDtype
from optim.options.slot_placement import SlotPlacement
from optim.options.stochastic_rounding import StochasticRounding

if TYPE_CHECKING:
    from optim.state.tracked import Tracked

OF_ALL: tuple[type[Part], ...] = (
    *(Clipping, Averages, ExecutorChoice, RepeatedRows, SlotPlacement, Accumulation, LossScale, MasterCopies),
    *(SlotDtype, StochasticRounding),
)
OPTIONS_OF_ALL = tuple(name for part in OF_ALL for name in part.options)
"""Options that act on all variables together, or on state that all share: arguments of `Groups`."""
OTHER_NAMES = {"loss_scale_factor": "loss_scale"}


def check_options(options: Mapping[str, Any]) -> None:
    """Raises HyperparameterError: an argument of `Groups` belongs to its members. TypeError: it is unknown."""
    for name in options:
        if name in (*OPTIONS, "learning_rate") and name not in (*OPTIONS_OF_ALL, *OTHER_NAMES):
            raise HyperparameterError(f"{name} belongs to the optimizers of the groups; give it to those")


def signature(groups_signature: inspect.Signature) -> inspect.Signature:
    """A signature of `Groups` whose `**options` are written out."""
    every = with_options(groups_signature).parameters
    others = {*OPTIONS} - {*OPTIONS_OF_ALL, *OTHER_NAMES}
    return groups_signature.replace(parameters=[parameter for name, parameter in every.items() if name not in others])


class GroupsSettings(Settings):
    """The options of the whole, with those of the members where a step asks for them by variable."""

    def add_members(self, members: Sequence[Settings], selection: Selection) -> None:
        """Know the members, which have joined."""
        main = selection.main
        others = [member.rate for number, member in enumerate(members) if number != main]
        self.rate: Any = JointRate(members[main].rate, others)
        self.multipliers: Any = _Multipliers(members, selection)
        self.lazy_rows: Any = _LazyRows(members, selection)
        self.weight_decay: Any = _WeightDecay(members, selection)
        self._members = members
        rules = [rule for member in members for rule in member._algorithm.updating_rules]
        self.slot_dtypes.check(rules, self._algorithm.owner, has_lazy_rows=bool(self.lazy_rows.patterns))

    def __iter__(self) -> Iterator[Part]:
        return (part for part in vars(self).values() if isinstance(part, OF_ALL))

    def watch(self, changed: Callable[[], None]) -> None:
        super().watch(changed)
        for member in self._members:
            member.watch(changed)

    def live(self) -> dict[str, Any]:
        return {"slot_placement": self.placement.slot_placement}

    def report_change(self) -> None:
        self.clipping.changed()

    def get(self, name: str) -> Any:
        if name not in OPTIONS_OF_ALL:
            raise AttributeError(f"{name} belongs to the groups; read optimizer.members[i].{name}")
        return super().get(name)

    def change(self, name: str, value: Any) -> None:
        if name not in OPTIONS_OF_ALL:
            raise UnsupportedError(f"{name} belongs to the groups; set optimizer.members[i].{name}")
        super().change(name, value)

    def _check(self) -> None:
        self.check_rounding(is_by_rule=True)
        for member in vars(self).get("_members", ()):
            member._check()


class _OfMembers:
    """An option that belongs to the members, for one variable at a time."""

    def __init__(self, members: Sequence[Settings], selection: Selection):
        self._members, self._selection = members, selection

    def _settings(self, tracked: Tracked) -> Settings:
        return self._members[self._selection.of(tracked)]


class _Multipliers(_OfMembers):
    def add(self, new: Sequence[Tracked]) -> None:
        for number, member in enumerate(self._members):
            member.multipliers.add([tracked for tracked in new if self._selection.of(tracked) == number])


class _LazyRows(_OfMembers):
    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(pattern for member in self._members for pattern in member.lazy_rows.patterns)

    def applies_to(self, tracked: Tracked) -> bool:
        return self._settings(tracked).lazy_rows.applies_to(tracked)


class _WeightDecay(_OfMembers):
    def amount(self, tracked: Tracked) -> float | None:
        return self._settings(tracked).weight_decay.amount(tracked)
