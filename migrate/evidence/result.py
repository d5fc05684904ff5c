"""Build the state from all answers, with the origin of each value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from migrate.algorithms import wrappers
from migrate.algorithms.clipping import LIMITS
from migrate.claims import DEFAULT, FILE, Origin
from migrate.evidence import consistency, program_effects, step_count, trained_variables
from migrate.evidence.known import Known, ordered
from migrate.state import OptimizerState


def state(known: Known) -> OptimizerState:
    iterations, origin, _ = known.steps
    return OptimizerState(
        algorithm=known.configuration.algorithm.name,
        hyperparameters=known.arguments.values,
        iterations=iterations,
        iterations_source=origin.where,
        slots=known.selection.slots,
        variables=ordered(known.flagged, known.table.order),
        scalars=known.state[0],
        unmapped=known.selection.unmapped,
        matched=known.methods,
        source=replace(known.flagged, optimizer_config=_whole_config(known)),
        origins=known.claims,
        warnings=known.warnings,
    )


def claims(known: Known) -> tuple[Origin, ...]:
    stored, configuration, table, slots = known.stored, known.configuration, known.table, known.selection.slots
    origins = known.arguments.origins
    read = {origin.subject for origin in origins.values() if origin.kind == FILE}
    return (
        # without the defaults of settings that the file does contain
        *(origin for origin in configuration.claims if not (origin.kind == DEFAULT and origin.subject in read)),
        known.hinted.generation,
        *origins.values(),
        known.steps[1],
        *known.state[1],
        *consistency.of_slots(slots, known.methods),
        *(known.twins if slots else ()),
        trained_variables.of_trained(stored, table.order, known.is_named, configuration),
        *trained_variables.of_late(stored, table, configuration, known.is_named),
        *trained_variables.of_several(stored, known.hinted.named),
        *program_effects.origins(stored, configuration, origins, known.selection.unmapped),
        *table.claims,
    )


def warnings(known: Known) -> tuple[str, ...]:
    scaled = [
        f"{name} wraps the optimizer: its loss scale is not migrated; optim.load_checkpoint(..., loss_scale=...)"
        " switches loss scaling on again"
        for name in known.configuration.wrappers
        if wrappers.plain(name) in wrappers.LOSS_SCALE
    ]
    return (
        *known.stored.warnings,
        *scaled,
        *known.configuration.notes,
        *step_count.note(known.stored, known.configuration, known.counted[0]),
        *known.arguments.warnings,
        *known.table.warnings,
        *program_effects.late_reads(known.stored, known.arguments.values),
    )


def _whole_config(known: Known) -> Mapping[str, Any]:
    """Return the config of source and hints together, for readers that derive the release's formula from it."""
    stored, configuration, hint = known.stored, known.configuration, known.optimizer_config
    documents = (stored.optimizer_config, stored.graph_config, hint)
    is_all = not configuration.overrides and hint is None and stored.graph_config is None
    if is_all and stored.optimizer_config is not None:
        return stored.optimizer_config
    document = next((candidate for candidate in documents if candidate is not None), {})
    outer = document if configuration.wrappers else {}
    inner = {"class_name": configuration.algorithm.name, "config": dict(configuration.config)}
    if not outer:
        return inner
    limits = {key: configuration.config.get(key) for key in LIMITS}
    return {**outer, "config": {**outer.get("config", {}), **limits, "inner_optimizer": inner}}
