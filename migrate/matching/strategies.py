"""Find the variable of a slot: by name if names show it, else by shape and position, and never by guess."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from migrate.algorithms.spec import Algorithm
from migrate.bytes.arrays import LazyArray
from migrate.claims import Questions, asking
from migrate.errors import AmbiguousError
from migrate.state import StoredVariable
from migrate.surfaces import VARIABLES
from optim.errors import MismatchError

Pairs = dict[tuple[str, str], LazyArray]
"""(slot, variable name) -> array."""
SHOWN = 6
NOT_STATE = (
    *("moving_mean", "moving_variance", "running_mean", "running_std", "running_variance"),
    *("moving_stddev", "renorm_mean", "renorm_stddev"),
)


def plain(name: str) -> str:
    """Return a variable's name without `:0`."""
    return name.removesuffix(":0")


def is_statistic(name: str) -> bool:
    """Return whether no optimizer trains a variable, by its name alone."""
    return re.split(r"[/.]", plain(name))[-1] in NOT_STATE


@dataclass(frozen=True)
class _Parse:
    """One way to parse a stored name: `<prefix>/<variable>/<slot>` or `<prefix>/<slot>/<variable>`."""

    slot: str
    variable: StoredVariable
    prefix: str


def by_name(
    weights: Sequence[tuple[str, LazyArray]],
    variables: Sequence[StoredVariable],
    algorithm: Algorithm,
    optimizer_name: str,
    slot_last: bool,
) -> tuple[Pairs, list[tuple[str, LazyArray]], list[tuple[str, LazyArray]]]:
    """Return slots by the variable that their stored names show.

    Args:
      optimizer_name: `name` in the optimizer's config, the usual prefix.
      slot_last: whether names are `<variable>/<slot>` (OptimizerV2), else `<slot>/<variable>` (2.11 and
        later).

    Returns:
      The pairs found, the weights whose names show nothing, and those that no step reads. All names are read with
      one prefix if one fits them all, since a layer may be called `Adam/m`. Names with several prefixes come from
      training in stages.

    Raises:
      MismatchError: a name matches and the shape does not.
      AmbiguousError: two names mean the same slot of the same variable.
    """
    owners: dict[str, list[StoredVariable]] = {}
    for variable in variables:
        owners.setdefault(plain(variable.name), []).append(variable)
    readings = [(name, array, _parses(plain(name), owners, algorithm, slot_last)) for name, array in weights]
    rest = [(name, array) for name, array, parses in readings if not parses]
    named = [reading for reading in readings if reading[2]]
    common = set.intersection(*({p.prefix for p in parses} for _, _, parses in named)) if named else set()
    pairs: Pairs = {}
    unread: list[tuple[str, LazyArray]] = []
    for name, array, parses in named:
        usable = [p for p in parses if p.prefix in common] or parses
        best = min(usable, key=lambda p: (_rank(p.prefix, optimizer_name), -len(p.variable.name)))
        key = best.slot, best.variable.name
        if key in pairs:
            raise AmbiguousError(
                f"{name!r} and {pairs[key].stored_as!r} both read as slot {best.slot} of {best.variable.name!r};"
                " migrate a TensorFlow checkpoint of the same model, which distinguishes them"
            )
        shape = algorithm.slot(best.slot).shape(best.variable.shape)
        if shape is None:
            unread.append((name, array))
            continue
        if array.shape != shape:
            raise MismatchError(
                f"slot {name!r} has shape {list(array.shape)} and its variable {best.variable.name!r} has"
                f" {list(best.variable.shape)}: the optimizer's state and the model in this source do not"
                " belong together"
            )
        pairs[key] = array
    return pairs, rest, unread


def _parses(
    name: str, variables: Mapping[str, Sequence[StoredVariable]], algorithm: Algorithm, slot_last: bool
) -> list[_Parse]:
    """Return the ways to parse a name.

    Args:
      variables: by their plain names.
    """
    if slot_last:
        head, _, tail = name.rpartition("/")
        slot = algorithm.slot_of(tail)
        return [_Parse(slot, v, prefix) for prefix, end in _ends(head) for v in variables.get(end, ())] if slot else []
    parses = []
    for before, end in _ends(name):
        prefix, _, tail = before.rpartition("/")
        slot = algorithm.slot_of(tail) if before and end in variables else None
        if slot:
            parses += [_Parse(slot, v, prefix) for v in variables[end]]
    return parses


def _ends(name: str) -> Iterator[tuple[str, str]]:
    """Yield each split of a name into beginning and end: `a/b/c` -> ("", `a/b/c`), (`a`, `b/c`), (`a/b`, `c`)."""
    yield "", name
    for at, character in enumerate(name):
        if character == "/":
            yield name[:at], name[at + 1 :]


def _rank(prefix: str, optimizer_name: str) -> int:
    if prefix == optimizer_name:
        return 0
    if prefix.endswith("/" + optimizer_name):
        return 1
    return 2 if not prefix else 3


_JOINED_LATER = (
    "The list has the slots of these variables first and then those of others, as after a layer was unfrozen while"
    " training, and does not show which came first. The .h5 or the TensorFlow checkpoint of the same model does:"
    " migrate that instead"
)


def by_stages(
    stages: Sequence[Sequence[tuple[int, ...]]], variables: Sequence[StoredVariable], where: str, complete: bool
) -> tuple[list[StoredVariable], str]:
    """Return as `by_position`, for variables that joined the optimizer in stages: each stage chooses among those left.

    Args:
      complete: whether to check as `check_complete` does.
    """
    owners: list[StoredVariable] = []
    how = "position"
    for shapes in stages:
        owner_names = {v.name for v in owners}
        try:
            chosen, method = by_position(shapes, [v for v in variables if v.name not in owner_names], where)
        except AmbiguousError as error:
            raise AmbiguousError(f"{error}. {_JOINED_LATER}" if len(stages) > 1 else str(error)) from error
        owners += chosen
        how = method if how == "position" else how
    if complete:
        check_complete(owners, variables, where)
    return owners, how


def check_complete(owners: Sequence[StoredVariable], variables: Sequence[StoredVariable], where: str) -> None:
    """Refuse to leave a trainable variable without slots if other variables have slots. Raises MismatchError."""
    left = [v.name for v in variables if v.trainable and v not in owners]
    if owners and left:
        raise MismatchError(
            f"{where}: it has no slots for {_names(left)}: it is incomplete, or belongs to another model or"
            " optimizer. If these were never trained, remove them from --variables"
        )


def by_shape_alone(
    shapes: Sequence[tuple[int, ...]], variables: Sequence[StoredVariable], where: str
) -> list[StoredVariable]:
    """Return the trainable variables of these shapes, in any order.

    Raises:
      AmbiguousError: a shape occurs twice. MismatchError: the shapes are not those of the variables.
    """
    trained = [v for v in variables if v.trainable is not False]
    if sorted(v.shape for v in trained) != sorted(shapes):
        raise MismatchError(_misfit(where, shapes, trained))
    owners = _by_unique_shape(list(shapes), trained)
    if owners is None:
        raise AmbiguousError(
            f"{where} was saved by an optimizer that tf.train.Checkpoint.restore had filled: its variables are in the"
            " order in which they were restored, which the list does not contain, and several have the same shape."
            " Migrate the TensorFlow checkpoint, or a list saved without restoring"
        )
    return owners


def by_position(
    shapes: Sequence[tuple[int, ...]], variables: Sequence[StoredVariable], where: str
) -> tuple[list[StoredVariable], str]:
    """Return the variables that slots of these shapes belong to, in order, and the method: `position` or `shape`.

    First come the variables that the source calls trainable, in order. Flags may change after `compile`: next comes the
    only selection of whole layers, or else of variables, that fits. Last, for shapes that occur once, comes the shape
    alone.

    Raises:
      AmbiguousError: several selections fit, and they differ.
      MismatchError: no selection fits.
    """
    wanted = [tuple(s) for s in shapes]
    if not wanted:
        return [], "position"
    for flags in ((True,), (True, None)):
        chosen = [v for v in variables if v.trainable in flags]
        if [v.shape for v in chosen] == wanted:
            return chosen, "position"
    maybe = usable(variables)
    for groups in (_layers(maybe), [[v] for v in maybe]):
        fits = _selections(wanted, groups)
        if len(fits) == 1:
            return fits[0], "shape"
        if len(fits) > 1:
            choices = tuple({VARIABLES: [v.name for v in fit]} for fit in fits)
            raise asking(AmbiguousError(_ambiguous(where, wanted, fits)), Questions({}, choices))
    unordered = _by_unique_shape(wanted, maybe)
    if unordered is not None:
        return unordered, "shape"
    raise MismatchError(_misfit(where, wanted, maybe))


def another_choice(
    chosen: Sequence[StoredVariable], variables: Sequence[StoredVariable]
) -> list[StoredVariable] | None:
    """Return other layers whose variables have the same shapes and so fit the slots; None if there are no others."""
    fits = _selections([v.shape for v in chosen], _layers(usable(variables)))
    return next((fit for fit in fits if fit != list(chosen)), None)


def usable(variables: Sequence[StoredVariable]) -> list[StoredVariable]:
    """Return the variables that may have been trained, whatever their flags show now."""
    return [v for v in variables if v.trainable is not False or not v.name.endswith(NOT_STATE)]


def _layers(variables: Sequence[StoredVariable]) -> list[list[StoredVariable]]:
    return [list(group) for _, group in groupby(variables, key=lambda v: _layer(v.name))]


def _layer(name: str) -> str:
    """Return the layer of a name: `a/b` of `a/b/kernel`, and of Keras 1's `a_W` a."""
    return name.rpartition("/" if "/" in name else "_")[0]


def _selections(wanted: list[tuple[int, ...]], groups: Sequence[list[StoredVariable]]) -> list[list[StoredVariable]]:
    """Return up to two selections of whole groups, in order, with the wanted shapes."""
    # ways[i] holds up to two selections, of the groups seen so far, that cover the first i wanted shapes.
    ways: list[list[_Taken | None]] = [[] for _ in range(len(wanted) + 1)]
    ways[0] = [None]
    seen, left = 0, sum(map(len, groups))
    for group in groups:
        shapes = [v.shape for v in group]
        seen, left = seen + len(group), left - len(group)
        least = max(len(shapes), len(wanted) - left)  # below this, the remaining groups are too few
        for end in range(min(len(wanted), seen), least - 1, -1):
            if shapes and ways[end - len(shapes)] and wanted[end - len(shapes) : end] == shapes:
                taken = [_Taken(way, group) for way in ways[end - len(shapes)]]
                ways[end] = (ways[end] + taken)[:2]
    return [_all_of(way) for way in ways[-1]]


class _Taken(NamedTuple):
    """The last group of a selection, with a link to the groups before it: lists would copy long selections."""

    before: _Taken | None
    group: list[StoredVariable]


def _all_of(way: _Taken | None) -> list[StoredVariable]:
    groups = []
    while way is not None:
        groups.append(way.group)
        way = way.before
    return [variable for group in reversed(groups) for variable in group]


def _by_unique_shape(wanted: list[tuple[int, ...]], usable: Sequence[StoredVariable]) -> list[StoredVariable] | None:
    have = {v.shape: v for v in usable}
    of_wanted, of_usable = Counter(wanted), Counter(v.shape for v in usable)
    if any(of_wanted[s] != 1 or of_usable[s] != 1 for s in wanted):
        return None
    return [have[s] for s in wanted]


def _ambiguous(where: str, wanted: Sequence[tuple[int, ...]], fits: Sequence[Sequence[StoredVariable]]) -> str:
    options = "; or ".join(_names([v.name for v in fit]) for fit in fits)
    return (
        f"{where}: slots of {len(wanted)} variables, and more than one choice of variables has these"
        f" shapes: {options}."
        " Name the right ones, in order, in --variables"
    )


def _misfit(where: str, wanted: Sequence[tuple[int, ...]], usable: Sequence[StoredVariable]) -> str:
    have = [f"{v.name}{list(v.shape)}" for v in usable]
    return (
        f"{where}: its slots have the shapes {_names([str(list(s)) for s in wanted])} and the variables are"
        f" {_names(have)}; they do not belong together. If the variables are wrong, give the right ones in"
        " --variables"
    )


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > SHOWN else shown or "none"
