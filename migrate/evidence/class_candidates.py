"""Which classes the slots of a source can be of, for people who have to say the class; nothing is concluded from it."""

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
    """Names of classes, those first that the names in the source are after; of a list those whose lists it fits."""
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
    """The class after which the source calls its optimizer, as Keras does unless a program names it."""
    called = re.sub(r"_\d+$", "", stored.optimizer_name or "").replace("_", "").lower()
    return [a.name for a in ALGORITHMS if a.name.lower() == called]


def _as_named(stored: Stored, found: list[str]) -> list[str]:
    return list(dict.fromkeys([*named(stored), *found]))


def _of_list(stored: Stored) -> list[str]:
    generation = stored.generation or ""
    known = [a for a in ALGORITHMS if generation in a.generations]
    return _as_named(stored, [a.name for options in SWITCHED for a in known if _fits(a, options, generation, stored)])


SWITCHED: tuple[dict[str, Any], ...] = (
    *({}, {"amsgrad": True}, {"momentum": 0.9}, {"centered": True}),
    *({"use_ema": True}, {"gradient_accumulation_steps": 2}),
)
"""Options that make slots, those of most programs first."""


def _fits(algorithm: Algorithm, options: Mapping[str, Any], generation: str, stored: Stored) -> bool:
    """Whether the class keeps such a list, with slots that variables of the source can have."""
    possible = orders.candidates(algorithm, generation, {**algorithm.defaults(generation), **options})
    shapes = Counter(v.shape for v in stored.variables)
    cut = orders.cuts(possible, [array for _, array in stored.weights or ()], generation)
    return any(each.slots and Counter(s for stage in each.stages for s in stage) <= shapes for each in cut)


OPTIONAL = {"SGD": {"m"}, "RMSprop": {"momentum", "average_gradient"}}
"""Slots that a class keeps with some options only, besides `vhat`."""


def _keeps(algorithm: Algorithm, slots: set[str | None]) -> bool:
    """Whether these are its slots, under some options."""
    every = {slot.name for slot in algorithm.slots}
    return slots <= every and every - OPTIONAL.get(algorithm.name, set()) - {"vhat"} <= slots
