"""Read Saver checkpoints of programs that build their optimizer of plain ops, by what the graph does with variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from migrate.bytes.arrays import LazyArray
from migrate.graphs import plain_ops
from migrate.graphs.plain_ops import Plain
from migrate.graphs.saver import SaverGraph
from migrate.readers.savers.parts import Parts, in_order, variables_of
from migrate.releases.recognition import SLOTS_NAMED_AFTER_CLASSES
from migrate.state import GLOBAL_STEP

_POWERS = {"beta_1": "beta1_power", "beta_2": "beta2_power"}
"""Their names in tf.train."""


def find(arrays: Mapping[str, LazyArray], graph: SaverGraph | None) -> Plain | None:
    """Return the optimizer if the graph trains by plain ops alone, and by a known rule."""
    if graph is None or graph.nodes is None or graph.updates or any(key.endswith("/adam_m") for key in arrays):
        return None
    try:
        plain = plain_ops.of_program(graph.nodes, [name for name in graph.trainable or () if name in arrays])
    except (LookupError, ValueError):  # a damaged graph
        return None
    keys = [*(key for per in plain.slots.values() for key in per.values()), *plain.powers.values()] if plain else []
    return plain if all(key in arrays for key in keys) else None


def stored(arrays: Mapping[str, LazyArray], graph: SaverGraph, plain: Plain) -> Parts:
    slots = {slot: {owner: arrays[key] for owner, key in per.items()} for slot, per in plain.slots.items()}
    scalars = {_POWERS[key]: _power(arrays[name], key, plain) for key, name in plain.powers.items()}
    if plain.counter in arrays:
        scalars["iterations" if plain.needs_count else GLOBAL_STEP] = _counted(arrays[plain.counter], plain.ahead)
    used = {plain.counter, *plain.powers.values(), *(key for per in plain.slots.values() for key in per.values())}
    names = in_order([key for key in arrays if key not in used], graph)
    why = f"the graph updates variables with plain ops that compute the same as {plain.trained.class_name}"
    variables = [replace(v, trainable=v.name in plain.owners) for v in variables_of(arrays, names, graph)]
    return Parts(SLOTS_NAMED_AFTER_CLASSES, why, tuple(variables), slots, scalars)


def _counted(array: LazyArray, ahead: float) -> LazyArray:
    if not ahead:
        return array
    return LazyArray(
        (), array.dtype, lambda: np.asarray(array.load() - np.asarray(ahead, array.dtype)), array.stored_as
    )


def _power(array: LazyArray, key: str, plain: Plain) -> LazyArray:
    """A power as tf.train stores it, one step ahead."""
    beta = plain.trained.config.get(key)
    if not plain.multiplies_first or not isinstance(beta, float):
        return array
    return LazyArray((), array.dtype, lambda: np.asarray(array.load() * np.asarray(beta, array.dtype)), array.stored_as)
