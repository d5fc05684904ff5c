"""Choose which live variables get what from a source if only parts of the two match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from migrate.conversion import partial, shards
from migrate.conversion.partial import Choice
from migrate.live import variable_matching
from migrate.live.base import Live
from migrate.live.variable_matching import LeftOverError, LiveVariable, Pair
from migrate.matching import choosing
from migrate.state import OptimizerState, Parts
from optim.checkpoints.variables import identity
from optim.errors import DtoptError, HyperparameterError, MismatchError

TRIES = 4
"""Most patterns of a call that is tested before it is advised."""


@dataclass(frozen=True)
class Selection:
    """The state for the live variables, all of these, and those of the source."""

    state: OptimizerState
    live_variables: tuple[LiveVariable, ...]
    pairs: tuple[Pair, ...]


def select(
    state: OptimizerState,
    live: Live,
    live_variables: Sequence[LiveVariable],
    variables: Any,
    choice: Choice,
    restores: bool,
) -> Selection:
    """Return the pairs of live and stored variables, after the user's choices.

    Args:
      restores: whether the variables get the stored values.

    Raises:
      HyperparameterError: patterns that match nothing. MismatchError, AmbiguousError: as for `matching.pairs`; if
        other patterns would work, with the call that has them.
    """
    ordered = not isinstance(variables, Mapping)
    live_variables = [*live_variables, *_known(live, live_variables, choice)]
    try:
        return _selected(state, live, live_variables, choice, ordered, restores)
    except LeftOverError as error:
        advised = _tested_call(error, state, live, live_variables, choice, ordered, restores)
        raise MismatchError(f"{error}{advised}") from error
    except HyperparameterError as error:
        advice = "" if ordered else "; name the new variables in the mapping too, under new names"
        raise HyperparameterError(f"{error}{advice}") from error


def _known(live: Live, live_variables: Sequence[LiveVariable], choice: Choice) -> list[LiveVariable]:
    """Other variables that the optimizer was built on, which start fresh by their own names."""
    there = {identity(g.variable) for g in live_variables}
    others = (
        variable_matching.live_variables([v for v in live.known() if identity(v) not in there]) if choice.fresh else []
    )
    return [g for g in others if any(choosing.finds(pattern, g.name) for pattern in choice.fresh)]


def _selected(
    state: OptimizerState,
    live: Live,
    live_variables: Sequence[LiveVariable],
    choice: Choice,
    ordered: bool,
    restores: bool,
) -> Selection:
    names = [g.name for g in live_variables]
    parts = choice.parts_of(names, state.parts)
    fresh, grown = parts.fresh, parts.grown
    kept = {g.name: g.shape for g in live_variables if g.name not in fresh}
    state, resharded = shards.resharded(state, kept, grown)
    is_part = bool(fresh or grown or choice.weights_only)
    part = variable_matching.Part(fresh, grown, choice.weights_only) if is_part else None
    pairs = variable_matching.pairs(state, live_variables, ordered, restores, part)
    larger = tuple(p.live.name for p in pairs if p.live.shape != p.stored.shape)
    parts = Parts(fresh, larger, partial.dropped(state, {p.stored.name for p in pairs} | {*fresh}) if is_part else ())
    if choice.weights_only:
        state = replace(state, algorithm=live.algorithm)
    state = replace(state, parts=parts, origins=(*state.origins, *partial.partial_origins(parts, resharded)))
    return Selection(state, tuple(live_variables), tuple(pairs))


def _tested_call(
    error: LeftOverError,
    state: OptimizerState,
    live: Live,
    live_variables: Sequence[LiveVariable],
    choice: Choice,
    ordered: bool,
    restores: bool,
) -> str:
    names, are_grown = [g.name for g in live_variables], error.are_grown
    candidate = choice
    for _ in range(TRIES):
        if not error.names:
            return "" if ordered else f". New ones may start fresh: {partial.NAMED_BY_YOU}"
        patterns = choosing.patterns_for(error.names, [n for n in names if n not in error.names])
        candidate = replace(candidate, fresh=tuple(dict.fromkeys((*candidate.fresh, *patterns))))
        try:
            _selected(state, live, live_variables, candidate, ordered, restores)
        except LeftOverError as other:
            error, are_grown = other, are_grown and other.are_grown
        except DtoptError:
            return ""
        else:
            larger = " (or grown=[...], which keeps their first part)" if are_grown else ""
            options: dict[str, Any] = {"weights_only": True} if choice.weights_only else {"restore_variables": restores}
            options |= {"fresh": list(candidate.fresh), "grown": list(candidate.grown)}
            call = partial.call("variables" if ordered else "mapping", **options)
            return f". New ones may start fresh{larger}: {call}"
    return ""
