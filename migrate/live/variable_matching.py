"""Match live variables with stored ones: by name, else by shape, else by position, and never by guess."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from migrate.errors import AmbiguousError
from migrate.live.current_values import Assumed
from migrate.live.mapped import Order
from migrate.matching.strategies import is_statistic, plain
from migrate.state import OptimizerState, StoredVariable
from optim import slot_layout
from optim.checkpoints.variables import handle
from optim.errors import MismatchError
from optim.state.names import plain_name

SHOWN = 8


class LeftOverError(MismatchError):
    """Live variables that the source does not have; `names` are theirs, and may start fresh."""

    names: tuple[str, ...] = ()
    are_grown: bool = False
    """Whether each of them has only become larger."""


def _left_over(text: str, live: Sequence[LiveVariable], are_grown: bool = False) -> LeftOverError:
    error = LeftOverError(text)
    error.names, error.are_grown = tuple(g.name for g in live), are_grown
    return error


@dataclass(frozen=True)
class Part:
    """The parts of the live variables that are not the source's: the names of those that start `fresh`, which are not
    matched, and of those that have `grown`. The source's other variables are dropped. `with_all`: whether untrained
    ones are matched by shape and position too."""

    fresh: Collection[str] = ()
    grown: Collection[str] = ()
    with_all: bool = False

    def fits(self, live: LiveVariable, stored: StoredVariable) -> bool:
        """Whether a live variable can get the numbers of a stored one."""
        is_grown = live.name in self.grown and slot_layout.is_grown(stored.shape, live.shape)
        return live.shape == stored.shape or is_grown


@dataclass(frozen=True)
class LiveVariable:
    """A live variable: `variable` is the caller's object, `name` has no `:0`."""

    name: str
    variable: Any
    shape: tuple[int, ...]
    trainable: bool


@dataclass(frozen=True)
class Pair:
    """A live variable, its stored one, and how they were matched: `name`, `shape` or `position`. `proven`: whether it
    has the value of the stored one already."""

    live: LiveVariable
    stored: StoredVariable
    how: str
    proven: bool = True


def live_variables(variables: Sequence[Any] | Mapping[str, Any]) -> list[LiveVariable]:
    """Prepare live variables for matching. Raises GradientsError for other objects."""
    named = variables.items() if isinstance(variables, Mapping) else [(plain_name(v), v) for v in variables]
    live = []
    for name, variable in named:
        live.append(
            LiveVariable(str(name), variable, handle(variable).shape, bool(getattr(variable, "trainable", True)))
        )
    return live


def pairs(
    state: OptimizerState, live: Sequence[LiveVariable], ordered: bool, with_values: bool, part: Part | None = None
) -> list[Pair]:
    """Match live and stored variables; pairs are only required if there are slots or values."""
    owners = {name for per in state.slots.values() for name in per}
    if not owners and not with_values:
        ordered = False
    stored = _in_model_order(state)
    layers = state.source.layers if part is not None and part.with_all and state.source is not None else None
    try:
        return match(
            live,
            stored,
            needed=lambda v: v.name in owners,
            ordered=ordered,
            equal=_has_stored_value,
            part=part,
            has_places=layers is None,
        )
    except ValueError:
        if owners or with_values:
            raise
        return []


def trained(
    live: Sequence[LiveVariable], stored: Sequence[StoredVariable], ordered: bool
) -> list[StoredVariable] | None:
    """The stored variables that the live model trains, for a source without trainable flags; None if no live variable
    is known to be one of them."""
    every = [replace(g, trainable=True) for g in live]
    flags = {g.name: g.trainable for g in live}
    for needed in (True, False):
        candidates = [replace(v, trainable=needed) for v in stored]
        try:
            matches = match(
                every, candidates, needed=lambda v: bool(v.trainable), ordered=ordered, equal=lambda *_: False
            )
        except ValueError:
            continue
        return [p.stored for p in matches if flags[p.live.name]]
    return None


def _in_model_order(state: OptimizerState) -> Sequence[StoredVariable]:
    """Stored variables in the model's order. From 2.9 on an optimizer is built in that order; older ones had others,
    and models saved with them have the model's."""
    stored = state.source
    if stored is None or stored.traits.builds_for_all:
        return state.variables
    order = {v.name: i for i, v in enumerate(stored.variables)}
    return sorted(state.variables, key=lambda v: order.get(v.name, len(order)))


def assumed(pair: Pair) -> Assumed:
    """The current values of a pair's live variable."""

    def value() -> np.ndarray:
        return np.asarray(handle(pair.live.variable).to_host(), np.float64)

    return Assumed(pair.stored, value, Order(tuple(range(len(pair.stored.shape)))))


def _has_stored_value(live: LiveVariable, stored: StoredVariable) -> bool:
    variable = handle(live.variable)
    if stored.array is None or stored.dtype != variable.dtype or stored.shape != live.shape:
        return False
    return bool(variable.to_host().tobytes() == np.asarray(stored.array.load()).tobytes())


def match(
    live: Sequence[LiveVariable],
    stored: Sequence[StoredVariable],
    *,
    needed: Callable[[StoredVariable], bool],
    ordered: bool,
    equal: Callable[[LiveVariable, StoredVariable], bool],
    part: Part | None = None,
    has_places: bool = True,
) -> list[Pair]:
    """Find a stored variable for every live one that is trained, and for others of the same name.

    Args:
      live: in the order of the model. stored: in the order of the source's model.
      needed: whether a stored variable must have a live one, because it has slots.
      ordered: whether the order of `live` is meaningful, so that position may decide.
      equal: whether a live variable has the value of a stored one; used if position decides.
      part: set if only parts of the two sides match.
      has_places: whether the order of `stored` is known.

    Raises:
      MismatchError: a name matches but not its shape; or some are left over, all of them listed.
      AmbiguousError: only position is left, and order or values contradict it.
    """
    aside = [g for g in live if part is not None and g.name in part.fresh]
    live = [g for g in live if part is None or g.name not in part.fresh]
    pairs = _by_name(live, stored, aside, part or Part(), _informative_names(ordered, part))
    _check_shapes(pairs, part or Part())
    done = {id(p.live) for p in pairs}
    free_live = [g for g in live if g.trainable and id(g) not in done]
    taken = {p.stored.name for p in pairs}
    free = [v for v in stored if v.name not in taken and (needed(v) or _is_trained(v, part))]
    ordered = ordered and has_places
    pairs += _pairs_by_shape_or_position(free_live, free, needed, ordered, equal, part)
    if part is not None and part.with_all:
        done, taken = {id(p.live) for p in pairs}, {p.stored.name for p in pairs}
        free_live = [g for g in live if not g.trainable and id(g) not in done]
        free = [v for v in stored if v.name not in taken and not _is_trained(v, part)]
        pairs += _pairs_by_shape_or_position(free_live, free, lambda _: False, ordered, equal, part)
    place = {id(g): i for i, g in enumerate(live)}
    return sorted(pairs, key=lambda p: place[id(p.live)])


def _is_trained(variable: StoredVariable, part: Part | None) -> bool:
    """Whether it is trained: by its flag; if only a part is wanted and the source has no flags, by its name."""
    if part is None or variable.trainable is not None:
        return bool(variable.trainable)
    return not is_statistic(variable.name)


def _pairs_by_shape_or_position(
    live: list[LiveVariable],
    stored: list[StoredVariable],
    needed: Callable[[StoredVariable], bool],
    ordered: bool,
    equal: Callable[[LiveVariable, StoredVariable], bool],
    part: Part | None,
) -> list[Pair]:
    pairs, live, stored = _unique_shape_pairs(live, stored)
    if part is not None:
        grown, live, stored = _growth_pairs(live, stored, part)
        pairs += grown
        shapes = {g.shape for g in live}
        stored = [v for v in stored if v.shape in shapes]
    return [*pairs, *_by_position(live, stored, needed, ordered, equal)]


Informative = Callable[[Collection[str], Collection[str], Collection[str]], list[str]]


def _by_name(
    live: Sequence[LiveVariable],
    stored: Sequence[StoredVariable],
    aside: Sequence[LiveVariable],
    part: Part,
    informative: Informative,
) -> list[Pair]:
    """Match equal names, then names with equal ends, longest first, if each is unique on both sides.

    Args:
      aside: live ones that are not matched. informative: the informative live names, compared with the stored ones and
        those aside.
    """
    pairs: list[Pair] = []
    depth = max((n.count("/") + 1 for n in [g.name for g in live] + [plain(v.name) for v in stored]), default=0)
    for parts in (0, *range(depth, 1, -1)):
        done = {id(p.live) for p in pairs}
        taken = {p.stored.name for p in pairs}
        ours = _unique((_last_parts(g.name, parts), g) for g in live if id(g) not in done)
        theirs = _unique((_last_parts(plain(v.name), parts), v) for v in stored if v.name not in taken)
        others = {_last_parts(g.name, parts) for g in aside}
        same = [key for key in informative(ours, theirs, others) if key and key in theirs]
        if parts:  # the end of a name proves less, so the shape must match too
            same = [key for key in same if part.fits(ours[key], theirs[key])]
        pairs += [Pair(ours[key], theirs[key], "name") for key in same]
    return pairs


def _informative_names(ordered: bool, part: Part | None) -> Informative:
    if not ordered:
        return lambda ours, _, __: list(ours)
    return partial(_is_informative, begins_alike=part is not None)


def _is_informative(
    ours: Collection[str], theirs: Collection[str], aside: Collection[str], begins_alike: bool
) -> list[str]:
    """Names of live variables that identify their stored ones.

    Keras numbers layers in the order in which a process creates them: `dense_1` of a saved model is `dense_2` of the
    same model created later. So numbers identify variables only if one side has only numbers of the other; and, if
    variables of both sides may be left over, only if both begin with the same number.
    """
    sides: list[dict[str, set[str]]] = [{}, {}]
    for groups, keys in zip(sides, ((*ours, *aside), theirs), strict=True):
        for key in keys:
            groups.setdefault(_without_numbers(key), set()).add(key)
    mine, other = sides
    kept = (group for kind, group in mine.items() if _tells(group, other.get(kind, set()), begins_alike))
    return [key for group in kept for key in sorted(group) if key in ours]


def _tells(group: set[str], rest: set[str], begins_alike: bool) -> bool:
    if not (group <= rest or rest <= group):
        return False
    return not (begins_alike and rest) or min(group, key=_numbers) == min(rest, key=_numbers)


def _numbers(name: str) -> tuple[int, ...]:
    """The numbers of layers in a name; `dense` comes before `dense_1`."""
    return tuple(int(number or -1) for number in re.findall(r"_?(\d*)(?=[_/]|$)", name))


def _without_numbers(name: str) -> str:
    return re.sub(r"_?\d+(?=[_/]|$)", "", name)


def _last_parts(name: str, parts: int) -> str:
    if not parts:
        return name
    pieces = name.split("/")
    return "/".join(pieces[-parts:]) if len(pieces) >= parts else ""


def _unique(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    groups: dict[str, list[Any]] = {}
    for key, item in items:
        groups.setdefault(key, []).append(item)
    return {key: members[0] for key, members in groups.items() if len(members) == 1}


def _check_shapes(pairs: Sequence[Pair], part: Part) -> None:
    other = [p for p in pairs if not part.fits(p.live, p.stored)]
    if other:
        wrong = [f"{p.live.name!r} has shape {list(p.live.shape)}, in the source {list(p.stored.shape)}" for p in other]
        raise _left_over(
            f"the live variables are not those of the source: {'; '.join(wrong[:SHOWN])}",
            [p.live for p in other],
            all(slot_layout.is_grown(p.stored.shape, p.live.shape) for p in other),
        )


def _unique_shape_pairs(
    live: Sequence[LiveVariable], stored: Sequence[StoredVariable]
) -> tuple[list[Pair], list[LiveVariable], list[StoredVariable]]:
    ours = _unique((str(g.shape), g) for g in live)
    theirs = _unique((str(v.shape), v) for v in stored)
    pairs = [Pair(ours[key], theirs[key], "shape") for key in ours if key in theirs]
    done, taken = {id(p.live) for p in pairs}, {p.stored.name for p in pairs}
    return pairs, [g for g in live if id(g) not in done], [v for v in stored if v.name not in taken]


def _growth_pairs(
    live: Sequence[LiveVariable], stored: Sequence[StoredVariable], part: Part
) -> tuple[list[Pair], list[LiveVariable], list[StoredVariable]]:
    pairs = []
    for g in (g for g in live if g.name in part.grown):
        fitting = [v for v in stored if part.fits(g, v)]
        rivals = [h for h in live if h is not g and any(part.fits(h, v) for v in fitting)]
        if len(fitting) == 1 and not rivals:
            pairs.append(Pair(g, fitting[0], "shape"))
    done, taken = {id(p.live) for p in pairs}, {p.stored.name for p in pairs}
    return pairs, [g for g in live if id(g) not in done], [v for v in stored if v.name not in taken]


def _by_position(
    live: Sequence[LiveVariable],
    stored: Sequence[StoredVariable],
    needed: Callable[[StoredVariable], bool],
    ordered: bool,
    equal: Callable[[LiveVariable, StoredVariable], bool],
) -> list[Pair]:
    if len(live) != len(stored):
        stored = [v for v in stored if needed(v)]
    if not live and not any(map(needed, stored)):
        return []
    if sorted(g.shape for g in live) != sorted(v.shape for v in stored):
        raise _left_over(
            f"the live variables are not those of the source: left over are {_shown(live)} live, and in the source"
            f" {_shown(stored)}; give all trainable variables of the model that was saved, or a mapping of the"
            " source's names to variables",
            live,
            all(any(slot_layout.is_grown(v.shape, g.shape) for v in stored) for g in live),
        )
    if not ordered or [g.shape for g in live] != [v.shape for v in stored]:
        raise AmbiguousError(_candidates(live, stored, "their names differ and their shapes are not unique"))
    pairs = [Pair(g, v, "position", equal(g, v)) for g, v in zip(live, stored, strict=True)]
    _check_values(pairs, equal)
    return pairs


def _check_values(pairs: Sequence[Pair], equal: Callable[[LiveVariable, StoredVariable], bool]) -> None:
    for pair in pairs:
        if pair.proven:
            continue
        others = [p.stored for p in pairs if p is not pair and p.stored.shape == pair.stored.shape]
        rival = next((v for v in others if equal(pair.live, v)), None)
        if rival is not None:
            raise AmbiguousError(
                f"by position {pair.live.name!r} would be {pair.stored.name!r} of the source, but it has the value of"
                f" {rival.name!r}: give a mapping of the source's names to variables"
            )


def _candidates(live: Sequence[LiveVariable], stored: Sequence[StoredVariable], why: str) -> str:
    lines = [
        f"{g.name!r} may be {' or '.join(repr(v.name) for v in stored if v.shape == g.shape)}" for g in live[:SHOWN]
    ]
    return (
        f"live variables could not be matched to stored ones, as {why}: {'; '.join(lines)}. Give a mapping of the"
        " source's names to variables"
    )


def _shown(items: Sequence[Any]) -> str:
    names = ", ".join(f"{x.name}{list(x.shape)}" for x in items[:SHOWN])
    return f"{names}, ... ({len(items)} in all)" if len(items) > SHOWN else names or "none"
