"""List the classes that can have the slots of a source, for users who must specify the class.

`migrate` draws no conclusion from this list.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from migrate.algorithms import ALGORITHMS, tf_train
from migrate.algorithms.spec import SHARED_SLOTS, Algorithm
from migrate.lists import orders
from migrate.state import Stored


def classes(stored: Stored) -> list[str]:
    """Return names of classes, those that names in the source contain first. For a list: those whose lists fit it."""
    if stored.weights is not None:
        return _of_list(stored)
    shared = {alias for slot in SHARED_SLOTS for alias in (slot.name, *slot.aliases)}
    slots = {name.lstrip("_") for name in stored.slots} - shared - {tf_train.AVERAGES}
    if not slots:
        return []
    if stored.traits.has_tf_train_names and not tf_train.of_objects(stored):
        bases = {re.sub(r"_\d+$", "", name) for name in slots}
        return sorted(b for b in bases if {b, f"{b}Optimizer"} & tf_train.CLASSES.keys() or b in tf_train.NAMED)
    known = [a for a in ALGORITHMS if stored.generation is None or stored.generation in a.generations]
    return _as_named(stored, [a.name for a in known if _keeps(a, {a.slot_of(name) for name in slots})])


def named(stored: Stored) -> list[str]:
    """Return the class after which the source names its optimizer, as Keras does unless a program names it."""
    called = re.sub(r"_\d+$", "", stored.optimizer_name or "").replace("_", "").lower()
    return [a.name for a in ALGORITHMS if a.name.lower() == called]


def _as_named(stored: Stored, candidates: list[str]) -> list[str]:
    return list(dict.fromkeys([*named(stored), *candidates]))


def _of_list(stored: Stored) -> list[str]:
    generation = stored.generation or ""
    known = [a for a in ALGORITHMS if generation in a.generations]
    return _as_named(stored, [a.name for options in SWITCHED for a in known if _fits(a, options, generation, stored)])


SWITCHED: tuple[dict[str, Any], ...] = (
    *({}, {"amsgrad": True}, {"momentum": 0.9}, {"centered": True}),
    *({"use_ema": True}, {"gradient_accumulation_steps": 2}),
)
"""Options that create slots, the most common ones first."""


def _fits(algorithm: Algorithm, options: Mapping[str, Any], generation: str, stored: Stored) -> bool:
    """Return whether the class keeps such a list, with slots that variables of the source can have."""
    possible = orders.candidates(algorithm, generation, {**algorithm.defaults(generation), **options})
    shapes = Counter(v.shape for v in stored.variables)
    cut = orders.cuts(possible, [array for _, array in stored.weights or ()], generation)
    return any(reading.slots and Counter(s for stage in reading.stages for s in stage) <= shapes for reading in cut)


OPTIONAL = {"SGD": {"m"}, "RMSprop": {"momentum", "average_gradient"}}
"""Slots, without `vhat`, that a class keeps only with some options."""


def _keeps(algorithm: Algorithm, slots: set[str | None]) -> bool:
    """Return whether a class has these slots, under some options."""
    every = {slot.name for slot in algorithm.slots}
    return slots <= every and every - OPTIONAL.get(algorithm.name, set()) - {"vhat"} <= slots
