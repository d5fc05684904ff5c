"""Which stored variable a live one is: by name, else by shape, else by position, and never by guess."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from migrate import generations
from migrate.errors import AmbiguousError
from migrate.live.held import Held
from migrate.live.mapped import Order
from migrate.matching.stages import plain
from migrate.state import OptimizerState, StoredVariable
from optim.errors import MismatchError

SHOWN = 8


@dataclass(frozen=True)
class Given:
    """A live variable: `variable` as the caller gave it, `name` without `:0`."""

    name: str
    variable: Any
    shape: tuple[int, ...]
    trainable: bool


@dataclass(frozen=True)
class Pair:
    """A live variable, the stored one that it is, and how that was found: `name`, `shape` or `position`, which is
    proven if it has the value of the stored one already."""

    live: Given
    stored: StoredVariable
    how: str
    proven: bool = True


def given(variables: Sequence[Any] | Mapping[str, Any]) -> list[Given]:
    """The live variables as they are matched. Raises GradientsError for what is none."""
    from optim.state.tracked import plain_name, unwrap

    named = variables.items() if isinstance(variables, Mapping) else [(plain_name(v), v) for v in variables]
    found = []
    for name, variable in named:
        inner = unwrap(variable)
        shape = tuple(int(n) for n in inner.shape)
        found.append(Given(str(name), variable, shape, bool(getattr(variable, "trainable", True))))
    return found


def pairs(state: OptimizerState, live: Sequence[Given], ordered: bool, with_values: bool) -> list[Pair]:
    """Live and stored variables that belong together; none are needed where there are no slots and no values."""
    owners = {name for per in state.slots.values() for name in per}
    if not owners and not with_values:
        ordered = False
    stored = _in_model_order(state)
    try:
        return match(live, stored, needed=lambda v: v.name in owners, ordered=ordered, equal=_equal)
    except ValueError:
        if owners or with_values:
            raise
        return []


def trained(live: Sequence[Given], stored: Sequence[StoredVariable], ordered: bool) -> list[StoredVariable] | None:
    """The stored variables that the live model trains, for a source that does not store which those are; None where no
    live variable is known to be one of them."""
    every = [replace(g, trainable=True) for g in live]
    flags = {g.name: g.trainable for g in live}
    for needed in (True, False):
        wanted = [replace(v, trainable=needed) for v in stored]
        try:
            found = match(every, wanted, needed=lambda v: bool(v.trainable), ordered=ordered, equal=lambda *_: False)
        except ValueError:
            continue
        return [p.stored for p in found if flags[p.live.name]]
    return None


def _in_model_order(state: OptimizerState) -> Sequence[StoredVariable]:
    """Stored variables as the model has them. From 2.9 on an optimizer is built in that order; older ones had others,
    and what they saved with has the model's."""
    stored = state.source
    if stored is None or stored.generation in generations.NEW:
        return state.variables
    order = {v.name: i for i, v in enumerate(stored.variables)}
    return sorted(state.variables, key=lambda v: order.get(v.name, len(order)))


def held(pair: Pair) -> Held:
    """What the live variable of a pair has."""
    from optim.layouts import placement
    from optim.state.tracked import unwrap

    def value() -> np.ndarray:
        return np.asarray(placement.to_host(unwrap(pair.live.variable)), np.float64)

    return Held(pair.stored, value, Order(tuple(range(len(pair.stored.shape)))))


def _equal(live: Given, stored: StoredVariable) -> bool:
    """Whether a live variable has the value of a stored one, bit for bit."""
    from optim.layouts import placement
    from optim.state.tracked import unwrap

    variable = unwrap(live.variable)
    if stored.array is None or stored.dtype != variable.dtype.name or stored.shape != live.shape:
        return False
    return bool(np.asarray(placement.to_host(variable)).tobytes() == np.asarray(stored.array.load()).tobytes())


def match(
    live: Sequence[Given],
    stored: Sequence[StoredVariable],
    *,
    needed: Callable[[StoredVariable], bool],
    ordered: bool,
    equal: Callable[[Given, StoredVariable], bool],
) -> list[Pair]:
    """A stored variable for every live one that is trained, and for each other one that has one of its name.

    Args:
      live: in the order of the model. stored: in the order of the source's model.
      needed: whether a stored variable must find its live one, as it has slots.
      ordered: whether the order of `live` means anything, so that position may decide.
      equal: whether a live variable has the value of a stored one; used where position decides.

    Raises:
      MismatchError: a name fits and its shape does not; or some are left over, all of them listed.
      AmbiguousError: only position is left to decide, and order or values speak against it.
    """
    pairs = _by_name(live, stored, _telling if ordered else lambda ours, _: list(ours))
    _check_shapes(pairs)
    done = {id(p.live) for p in pairs}
    free_live = [g for g in live if g.trainable and id(g) not in done]
    taken = {p.stored.name for p in pairs}
    free = [v for v in stored if v.name not in taken and (needed(v) or v.trainable)]
    by_shape, free_live, free = _by_shape(free_live, free)
    pairs += by_shape
    pairs += _by_position(free_live, free, needed, ordered, equal)
    place = {id(g): i for i, g in enumerate(live)}
    return sorted(pairs, key=lambda p: place[id(p.live)])


def _by_name(
    live: Sequence[Given], stored: Sequence[StoredVariable], telling: Callable[[Any, Any], list[str]]
) -> list[Pair]:
    """Same names, then names with the same end, longest first, as far as each is the only one on both sides.

    Args:
      telling: those of the live names that say anything, beside the stored ones.
    """
    pairs: list[Pair] = []
    depth = max((n.count("/") + 1 for n in [g.name for g in live] + [plain(v.name) for v in stored]), default=0)
    for parts in (0, *range(depth, 1, -1)):
        done = {id(p.live) for p in pairs}
        taken = {p.stored.name for p in pairs}
        ours = _unique((_end(g.name, parts), g) for g in live if id(g) not in done)
        theirs = _unique((_end(plain(v.name), parts), v) for v in stored if v.name not in taken)
        same = [key for key in telling(ours, theirs) if key and key in theirs]
        if parts:  # the end of a name proves less, so there the shape has to be right, too
            same = [key for key in same if ours[key].shape == theirs[key].shape]
        pairs += [Pair(ours[key], theirs[key], "name") for key in same]
    return pairs


def _telling(ours: Collection[str], theirs: Collection[str]) -> list[str]:
    """Names of live variables that say which stored one each is.

    Keras numbers layers in the order in which a process makes them: `dense_1` of a model that was saved is `dense_2` of
    the same one made later. So numbers tell only where one side has none that the other has not.
    """
    sides: list[dict[str, set[str]]] = [{}, {}]
    for found, keys in zip(sides, (ours, theirs), strict=True):
        for key in keys:
            found.setdefault(_numberless(key), set()).add(key)
    mine, other = sides
    kept = (group for kind, group in mine.items() if group <= (rest := other.get(kind, set())) or rest <= group)
    return [key for group in kept for key in sorted(group)]


def _numberless(name: str) -> str:
    """`dense_2/kernel` and `dense/kernel` are alike but for a number."""
    return re.sub(r"_?\d+(?=[_/]|$)", "", name)


def _end(name: str, parts: int) -> str:
    """The last parts of a name, the whole one for 0; empty if it has fewer."""
    if not parts:
        return name
    pieces = name.split("/")
    return "/".join(pieces[-parts:]) if len(pieces) >= parts else ""


def _unique(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Those whose key occurs once."""
    found: dict[str, list[Any]] = {}
    for key, item in items:
        found.setdefault(key, []).append(item)
    return {key: members[0] for key, members in found.items() if len(members) == 1}


def _check_shapes(pairs: Sequence[Pair]) -> None:
    wrong = [
        f"{p.live.name!r} has shape {list(p.live.shape)}, in the source {list(p.stored.shape)}"
        for p in pairs
        if p.live.shape != p.stored.shape
    ]
    if wrong:
        raise MismatchError(f"the live variables are not those of the source: {'; '.join(wrong[:SHOWN])}")


def _by_shape(
    live: Sequence[Given], stored: Sequence[StoredVariable]
) -> tuple[list[Pair], list[Given], list[StoredVariable]]:
    """Pairs of shapes that occur once on both sides, and what is left."""
    ours = _unique((str(g.shape), g) for g in live)
    theirs = _unique((str(v.shape), v) for v in stored)
    pairs = [Pair(ours[key], theirs[key], "shape") for key in ours if key in theirs]
    done, taken = {id(p.live) for p in pairs}, {p.stored.name for p in pairs}
    return pairs, [g for g in live if id(g) not in done], [v for v in stored if v.name not in taken]


def _by_position(
    live: Sequence[Given],
    stored: Sequence[StoredVariable],
    needed: Callable[[StoredVariable], bool],
    ordered: bool,
    equal: Callable[[Given, StoredVariable], bool],
) -> list[Pair]:
    if len(live) != len(stored):
        stored = [v for v in stored if needed(v)]
    if not live and not any(map(needed, stored)):
        return []
    if sorted(g.shape for g in live) != sorted(v.shape for v in stored):
        raise MismatchError(
            f"the live variables are not those of the source: left over are {_shown(live)} live, and in the source"
            f" {_shown(stored)}; give all trainable variables of the model that was saved, or a mapping of the"
            " source's names to variables"
        )
    if not ordered or [g.shape for g in live] != [v.shape for v in stored]:
        raise AmbiguousError(_candidates(live, stored, "their names differ and their shapes are not unique"))
    pairs = [Pair(g, v, "position", equal(g, v)) for g, v in zip(live, stored, strict=True)]
    _check_values(pairs, equal)
    return pairs


def _check_values(pairs: Sequence[Pair], equal: Callable[[Given, StoredVariable], bool]) -> None:
    """Where the live variables have the values of stored ones already, these must be the ones at their positions."""
    for pair in pairs:
        if pair.proven:
            continue
        others = [p.stored for p in pairs if p is not pair and p.stored.shape == pair.stored.shape]
        found = next((v for v in others if equal(pair.live, v)), None)
        if found is not None:
            raise AmbiguousError(
                f"by position {pair.live.name!r} would be {pair.stored.name!r} of the source, but it has the value of"
                f" {found.name!r}: give a mapping of the source's names to variables"
            )


def _candidates(live: Sequence[Given], stored: Sequence[StoredVariable], why: str) -> str:
    lines = [
        f"{g.name!r} may be {' or '.join(repr(v.name) for v in stored if v.shape == g.shape)}" for g in live[:SHOWN]
    ]
    return (
        f"which live variable is which stored one cannot be told, as {why}: {'; '.join(lines)}. Give a mapping of the"
        " source's names to variables"
    )


def _shown(items: Sequence[Any]) -> str:
    names = ", ".join(f"{x.name}{list(x.shape)}" for x in items[:SHOWN])
    return f"{names}, ... ({len(items)} in all)" if len(items) > SHOWN else names or "none"
