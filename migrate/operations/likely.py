"""Which classes the slots of a source can be of, for people who have to say the class; nothing is concluded from it."""

from __future__ import annotations

import re

from migrate.algorithms import ALGORITHMS, tf_train
from migrate.algorithms.spec import SHARED_SLOTS, Algorithm
from migrate.state import Stored


def classes(stored: Stored) -> list[str]:
    """Names of classes, those first that the names in the source are after; empty where its slots have no names."""
    shared = {alias for slot in SHARED_SLOTS for alias in (slot.name, *slot.aliases)}
    slots = {name.lstrip("_") for name in stored.slots} - shared - {tf_train.AVERAGES}
    if not slots:
        return []
    if stored.generation == "tf1" and not tf_train.of_objects(stored):
        bases = {re.sub(r"_\d+$", "", name) for name in slots}
        return sorted(b for b in bases if {b, f"{b}Optimizer"} & tf_train.CLASSES.keys() or b in tf_train.NAMED)
    known = [a for a in ALGORITHMS if stored.generation is None or stored.generation in a.generations]
    found = [a.name for a in known if _keeps(a, {a.slot_of(name) for name in slots})]
    named = (stored.optimizer_name or "").lower()
    return sorted(found, key=lambda name: name.lower() != named)


OPTIONAL = {"SGD": {"m"}, "RMSprop": {"momentum", "average_gradient"}}
"""Slots that a class keeps with some options only, besides `vhat`."""


def _keeps(algorithm: Algorithm, slots: set[str | None]) -> bool:
    """Whether these are its slots, under some options."""
    every = {slot.name for slot in algorithm.slots}
    return slots <= every and every - OPTIONAL.get(algorithm.name, set()) - {"vhat"} <= slots
