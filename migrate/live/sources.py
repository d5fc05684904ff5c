"""Read a source for a live optimizer: a checkpoint of `optim.Groups` has a state for each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from migrate import claims, readers, surfaces
from migrate.bytes.messages import some
from migrate.conversion import error_boundary, model_weights
from migrate.conversion.convert import read
from migrate.conversion.partial import Choice
from migrate.errors import AmbiguousError
from migrate.evidence import value_checks
from migrate.evidence.user_input.hints import SourceHints
from migrate.live import variable_matching
from migrate.readers import slot_groups, slots
from migrate.state import OptimizerState, Stored, StoredVariable


def read_all(
    path: str,
    hint: Sequence[Mapping[str, Any]] | None,
    live: Sequence[variable_matching.LiveVariable],
    hints: SourceHints,
    choice: Choice,
) -> tuple[list[OptimizerState], Sequence[StoredVariable]]:
    """Read and check a whole source.

    Args:
      hint: `source_variables`. live: the live variables, which name those of a list if the user gave no names.

    Returns:
      The state of each group, or the only one; and the variables of all in the order of the source.
    """
    paths, variables = list[str](), tuple[StoredVariable, ...]()
    with error_boundary.reading(path):
        if hints.get("optimizer_path") is None and readers.detect(path, hints.get("format", "auto")).name == slots.NAME:
            paths, variables = slots.groups(path)
    states = [_read(path, hint, live, {**hints, "optimizer_path": group}, choice) for group in paths]
    states = [replace(s, origins=tuple(o for o in s.origins if o.subject != slot_groups.NORM)) for s in states]
    states = states or [_read(path, hint, live, hints, choice)]
    return states, variables or states[0].variables


def _read(
    path: str,
    hint: Sequence[Mapping[str, Any]] | None,
    live: Sequence[variable_matching.LiveVariable],
    hints: SourceHints,
    choice: Choice,
) -> OptimizerState:
    """Read and check a whole source; the live variables name those of a list if the user gave no names."""
    with error_boundary.reading(path):
        if choice.weights_only:
            return model_weights.of_source(path, {**hints, **({"source_variables": hint} if hint else {})})
        is_same = not choice.is_partial
        if hint is None and live and is_same and readers.detect(path, hints.get("format", "auto")).name == "list":
            hint = [{"name": g.name, "shape": list(g.shape)} for g in live if g.trainable]
        state = _read_with_flags(path, hint, live, hints)
        state.finish_checks()
        return value_checks.checked(state)


def _read_with_flags(
    path: str,
    hint: Sequence[Mapping[str, Any]] | None,
    live: Sequence[variable_matching.LiveVariable],
    hints: SourceHints,
) -> OptimizerState:
    """Do the same as `read`; for a file of weights alone the live variables show what was frozen."""
    try:
        return read(path, variables=hint, **hints)
    except AmbiguousError:
        reader = readers.detect(path, hints.get("format", "auto"))
        stored = reader.read(path, hints.get("generation"), hints.get("optimizer_path"))
        if hint is not None or not isinstance(stored, Stored) or all(v.trainable is not None for v in stored.variables):
            raise
        names = variable_matching.trained(live, stored.variables, ordered=True)
        if not names:
            raise
        state = read(path, variables=[{"name": v.name, "shape": v.shape} for v in names], **hints)
        trained = [v.name for v in names]
        doubt = (
            f"{some(trained)}: the source does not store which variables were trained; dtopt assumes those that the"
            " live model trains"
        )
        confirm = surfaces.naming(trained)
        origin = claims.Origin(claims.TRAINED, trained, claims.COMPUTED, doubt=doubt, confirm=confirm)
        return replace(state, origins=(*state.origins, origin))
