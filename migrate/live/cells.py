"""Divide a restoration by rules: each cell has one rule of the source and one of the live optimizer.

One source and one optimizer make one cell. A checkpoint of `optim.Groups` has a state for each group, and a live
optimizer of several groups a part for each.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from migrate.bytes.messages import some
from migrate.claims import Origin, doubts
from migrate.conversion import partial
from migrate.live.base import Live
from migrate.live.differences import LIVE, Compared, Differences, Reset
from migrate.live.mapped import Target
from migrate.live.variable_matching import LiveVariable, Pair
from migrate.rules import comparison
from migrate.state import OptimizerState, Parts, StoredVariable
from optim.errors import UnsupportedError


def joined(states: Sequence[OptimizerState], variables: Sequence[StoredVariable]) -> OptimizerState:
    """Join the states of groups into one without a rule.

    Args:
      variables: all of them, in the order of the source.
    """
    first = states[0]
    if len(states) == 1:
        return first
    slots: dict[str, dict[str, Any]] = {}
    for slot, per in ((slot, per) for state in states for slot, per in state.slots.items()):
        slots.setdefault(slot, {}).update(per)
    parts = Parts(
        tuple(name for state in states for name in state.parts.fresh),
        tuple(name for state in states for name in state.parts.grown),
    )
    return replace(
        first,
        algorithm=" and ".join(dict.fromkeys(state.algorithm for state in states)),
        slots=slots,
        variables=tuple(variables),
        matched={key: how for state in states for key, how in state.matched.items()},
        source=first.source and replace(first.source, variables=tuple(variables)),
        origins=united(state.origins for state in states),
        warnings=tuple(dict.fromkeys(text for state in states for text in state.warnings)),
        parts=parts,
    )


def united(lists: Any) -> tuple[Origin, ...]:
    """Join lists of origins, each once."""
    every: list[Origin] = []
    for origins in lists:
        every += [origin for origin in origins if origin not in every]
    return tuple(every)


def limited(state: OptimizerState, whole: OptimizerState, names: Collection[str]) -> OptimizerState:
    """The part of `whole` with these variables, which follows the rule of `state`."""
    slots = {slot: {n: array for n, array in per.items() if n in names} for slot, per in whole.slots.items()}
    return replace(
        state,
        slots={slot: per for slot, per in slots.items() if per},
        variables=tuple(v for v in whole.variables if v.name in names),
        matched={key: how for key, how in whole.matched.items() if key.partition("/")[2] in names},
        parts=whole.parts,
    )


def by_state(
    states: Sequence[OptimizerState], whole: OptimizerState, targets: Sequence[Target]
) -> list[tuple[OptimizerState, list[Target]]]:
    """The parameters of a mapping by the state of the source that has them, with that state for them."""
    if len(states) == 1:
        return [(whole, list(targets))]
    numbers = {v.name: number for number, state in enumerate(states) for v in state.variables}
    targets_of = [[t for t in targets if numbers.get(t.stored.name, 0) == number] for number in range(len(states))]
    return [
        (limited(s, whole, {t.stored.name for t in mine}), mine)
        for s, mine in zip(states, targets_of, strict=True)
        if mine
    ]


@dataclass
class Cell:
    """Variables that follow one rule in the source, and one in the live optimizer.

    Attributes:
      state: of these variables. trainable, pairs: as in `differences.Differences`.
      is_reset: whether the optimizer gets nothing from the source for these variables.
    """

    live: Live
    state: OptimizerState
    trainable: list[LiveVariable]
    pairs: list[Pair]
    is_reset: bool
    compared: Compared = field(init=False)

    def compare(self, contradictions: Sequence[str]) -> None:
        """Compare the rules; the first cell gets the contradictions of the whole, see `current_values`."""
        if self.is_reset:
            self.compared = Reset(self.state, self.live, self.trainable)
        else:
            self.compared = Differences(self.state, self.live, self.trainable, self.pairs, contradictions)

    @property
    def label(self) -> str:
        """Names of its live variables, for reports."""
        return some([g.name for g in self.trainable])


def divided(
    live: Live,
    states: Sequence[OptimizerState],
    whole: OptimizerState,
    live_variables: Sequence[LiveVariable],
    pairs: Sequence[Pair],
    weights_only: bool,
) -> list[Cell]:
    """Divide a restoration.

    Args:
      states: of the source's groups, or its only one. whole: all of them joined, after the user's choices.
      live_variables: all of them, also untrained ones.

    Raises:
      UnsupportedError: another algorithm than the source's.
    """
    trainable = [g for g in live_variables if g.trainable]
    members = live.members([g.variable for g in trainable])
    numbers = {v.name: number for number, state in enumerate(states) for v in state.variables}
    stored = {id(p.live): p.stored.name for p in pairs}
    mine: dict[tuple[int, int], list[LiveVariable]] = {}
    for m, (_, places) in enumerate(members):
        for g in (trainable[i] for i in places):
            mine.setdefault((m, numbers.get(stored.get(id(g), ""), 0)), []).append(g)
    first = next(iter(mine), (0, 0))
    cell_of = {stored[id(g)]: key for key, owned in mine.items() for g in owned if id(g) in stored}
    for v in whole.variables:  # those that no trained one is matched with
        default = next((key for key in mine if key[1] == numbers.get(v.name, 0)), first)
        cell_of.setdefault(v.name, default)
    cells = []
    for key, owned in mine.items() or [(first, [])]:
        part, state = members[key[0]][0], states[key[1]]
        names = {name for name, of in cell_of.items() if of == key}
        state = whole if len(mine) < 2 and len(states) == 1 else limited(state, whole, names)
        if not weights_only:
            check_class(state, [part])
        cell_pairs = [p for p in pairs if any(p.live is g for g in owned) or (key == first and not p.live.trainable)]
        is_fresh = bool(owned) and all(g.name in whole.parts.fresh for g in owned)
        cells.append(Cell(part, state, owned, cell_pairs, weights_only or (is_fresh and len(mine) > 1)))
    return cells


def check_class(state: OptimizerState, parts: Sequence[Live]) -> None:
    """Raise UnsupportedError if no part of a live optimizer has the algorithm."""
    if not any(comparison.same_class(state.algorithm, part.algorithm) for part in parts):
        raise UnsupportedError(
            f"the source's optimizer is {state.algorithm} and the live one {' or '.join(part.what for part in parts)}:"
            f" their slots hold different things; make a live {state.algorithm}, or {partial.WEIGHTS_ONLY}"
        )


def origins(cells: Sequence[Cell]) -> tuple[Origin, ...]:
    """The origins of all cells; differences of rules name their variables if they are not those of every cell."""
    by_text: dict[str, list[str]] = {}
    for cell in cells:
        for text in cell.compared.of_rule:
            by_text.setdefault(text, []).append(cell.label)
    of_rule = [text if len(of) == len(cells) else f"{', '.join(of)}: {text}" for text, of in by_text.items()]
    known = united(cell.compared.kept for cell in cells)
    texts = [*of_rule, *(text for cell in cells for text in cell.compared.of_variables)]
    return (*known, *doubts(LIVE, dict.fromkeys(texts)))
