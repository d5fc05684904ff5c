"""The scalars of one step of several groups, and the one piece of work that an executor is given for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from optim.algorithm import Group
from optim.executors.work import Work
from optim.groups.algorithm import Composite
from optim.options.settings import Settings
from optim.rule import Rule
from optim.state.state import State
from optim.state.tracked import Tracked
from optim.step.preparation import Preparation


class GroupsPreparation(Preparation):
    """The scalars of the step after `iterations` steps, group by group."""

    def __init__(self, algorithm: Composite, state: State, settings: Settings, iterations: Any):
        self._algorithm = self._composite = algorithm
        self._state = state
        self._settings = settings
        self._last_positions: tuple[Sequence[Tracked], dict[int, list[int]]] | None = None
        self._parts = {
            number: Preparation(member.algorithm, member.state, member.settings, iterations)  # type: ignore[arg-type]
            for number, member in enumerate(algorithm.members)
            if algorithm.selection.members(number)
        }
        self.key = state.slots.storage.step_key(iterations)
        self.overwrite = settings.averages.overwrites(iterations)
        first = next(iter(self._parts.values()))
        self.ema_momentum, self.loss_scale = first.ema_momentum, first.loss_scale
        self.coefficients = {
            (number, group): scalars
            for number, part in self._parts.items()
            for group, scalars in part.coefficients.items()
        }

    def new_scalars(self) -> dict[str, Any]:
        """State of the algorithms after this step, under its names in the whole."""
        members = self._composite.members
        parts = self._parts.items()
        return {members[n].state.key(name): value for n, part in parts for name, value in part.new_scalars().items()}

    def work_of_rule(self, tracked: Tracked, gradient: Any) -> Work:
        return self._parts[self._composite.selection.of(tracked)].work_of_rule(tracked, gradient)

    def _rules_of(self, tracked: Sequence[Tracked]) -> list[Rule | None]:
        return self._spread(tracked, lambda number, part, mine: part._rules_of(mine))

    def _groups_of(self, tracked: Sequence[Tracked]) -> list[Group]:
        keys: dict[Any, Group] = {key: key for key in self.coefficients}  # each key is one object: fast to compare
        return self._spread(tracked, lambda number, part, mine: [keys[number, g] for g in part._groups_of(mine)])

    def _decay_factors(self, tracked: Sequence[Tracked]) -> list[Any]:
        return self._spread(tracked, lambda number, part, mine: part._decay_factors(mine))

    def _spread(
        self, tracked: Sequence[Tracked], ask: Callable[[int, Preparation, Sequence[Tracked]], Sequence[Any]]
    ) -> list[Any]:
        """What each group answers for its variables, in the order of `tracked`."""
        spread: list[Any] = [None] * len(tracked)
        for number, positions in self._positions(tracked).items():
            answers = ask(number, self._parts[number], [tracked[i] for i in positions])
            for i, answer in zip(positions, answers, strict=True):
                spread[i] = answer
        return spread

    def _positions(self, tracked: Sequence[Tracked]) -> dict[int, list[int]]:
        """Where the variables of each group are; looked for once for all variables of a step."""
        if self._last_positions is not None and self._last_positions[0] is tracked:
            return self._last_positions[1]
        positions: dict[int, list[int]] = {}
        for i, item in enumerate(tracked):
            positions.setdefault(self._composite.selection.of(item), []).append(i)
        self._last_positions = (tracked, positions)
        return positions
