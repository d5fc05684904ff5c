"""Read Keras 1 optimizers in a tf.train.Saver checkpoint. Slots and settings are all named `Variable_n`.

An optimizer creates its settings first, as a run of scalars, then slot after slot for all of its variables. The class
shows in the settings that its updates read: Adam's second slot reads beta_2, SGD's only slot reads the learning rate
and the momentum. Source: `keras/optimizers.py` of Keras 1.0.8, 1.1.2 and 1.2.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from migrate.bytes.arrays import LazyArray
from migrate.graphs.nodes import Nodes

ANONYMOUS = re.compile(r"Variable(?:_(\d+))?")
ITERATIONS, DECAY, RATE = "iterations", "decay", "lr"


class _Class(NamedTuple):
    """A class of Keras 1.

    Attributes:
      settings: in order of creation.
      slots: the settings that each slot's update reads, without those of the learning rate's decay.
      last: the op that computes the last slot, if only that identifies the class.
    """

    name: str
    settings: tuple[str, ...]
    slots: tuple[tuple[str, ...], ...]
    last: str = ""


_MOMENTS = (("beta_1",), ("beta_2",))
_OLD_ADAM = (ITERATIONS, RATE, "beta_1", "beta_2")
CLASSES = (
    _Class("SGD", (ITERATIONS, RATE, "momentum", DECAY), ((RATE, "momentum"),)),
    *(_Class("RMSprop", s, (("rho",),)) for s in ((RATE, "rho", DECAY, ITERATIONS), (RATE, "rho"))),
    *(_Class("Adagrad", s, ((),)) for s in ((RATE, DECAY, ITERATIONS), (RATE,))),
    *(_Class("Adadelta", s, ((), ())) for s in ((RATE, DECAY, ITERATIONS), (RATE,))),
    *(_Class("Adam", s, _MOMENTS, "Add") for s in ((*_OLD_ADAM, DECAY), _OLD_ADAM)),
    *(_Class("Adamax", s, _MOMENTS, "Maximum") for s in ((*_OLD_ADAM, DECAY), _OLD_ADAM)),
    _Class("Nadam", (ITERATIONS, "m_schedule", RATE, "beta_1", "beta_2"), _MOMENTS, "Add"),
)


@dataclass(frozen=True)
class Keras1Optimizer:
    """One optimizer: keys of its settings by name in Keras, keys of its slots in order of creation, and the variables
    that it trains, in the order of each kind of slot."""

    class_name: str
    scalars: Mapping[str, str]
    slots: tuple[str, ...]
    trained: tuple[str, ...]

    @property
    def name(self) -> str:
        """The key of its first setting, which differs between two optimizers."""
        return next(iter(self.scalars.values()))

    @property
    def config(self) -> dict[str, float]:
        """Settings that are no variables: the first releases had no decay."""
        return {} if DECAY in self.scalars or self.class_name == "Nadam" else {DECAY: 0.0}

    @property
    def state(self) -> frozenset[str]:
        return frozenset((*self.scalars.values(), *self.slots))


def is_keras1(arrays: Mapping[str, LazyArray]) -> bool:
    """Whether there are unnamed scalars, which only Keras 1 writes."""
    return any(array.shape == () and ANONYMOUS.fullmatch(key) for key, array in arrays.items())


def find(arrays: Mapping[str, LazyArray], nodes: Nodes) -> tuple[list[Keras1Optimizer], list[str]]:
    """Return the optimizers that the graph trains with, and the first setting of each whose class is unclear."""
    steps = list(_steps(nodes))
    optimizers, unknown = [], []
    for settings in _consecutive_scalars(arrays):
        updates = [
            (target, reads) for target, _, reads in steps if _is_weight(target, arrays) and reads & set(settings)
        ]
        if not updates:
            continue  # of an optimizer that trains nothing
        optimizer = _optimizer(settings, updates, steps, arrays, nodes)
        if optimizer is None:
            unknown.append(settings[0])
        else:
            optimizers.append(optimizer)
    return optimizers, unknown


def _is_weight(key: str, arrays: Mapping[str, LazyArray]) -> bool:
    return key in arrays and ANONYMOUS.fullmatch(key) is None


def _number(key: str) -> int:
    match = ANONYMOUS.fullmatch(key)
    return int(match.group(1) or 0) if match else -9


def _consecutive_scalars(arrays: Mapping[str, LazyArray]) -> list[list[str]]:
    runs: list[list[str]] = []
    for key in sorted((k for k, a in arrays.items() if a.shape == () and ANONYMOUS.fullmatch(k)), key=_number):
        if runs and _number(key) == _number(runs[-1][-1]) + 1:
            runs[-1].append(key)
        else:
            runs.append([key])
    return runs


def _steps(nodes: Nodes) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield (variable, op, variables that its new value depends on) for each assignment of a step."""
    for write in nodes.writes():
        if write.target in nodes.variables:
            reads = nodes.variables_of(write.value)
            if reads or nodes.op(write.op) == "AssignAdd":
                yield write.target, write.op, reads


def _optimizer(
    settings: Sequence[str],
    updates: Sequence[tuple[str, frozenset[str]]],
    steps: Sequence[tuple[str, str, frozenset[str]]],
    arrays: Mapping[str, LazyArray],
    nodes: Nodes,
) -> Keras1Optimizer | None:
    """Return the optimizer with these settings, None unless exactly one class builds this graph."""
    nameless = {key for key in arrays if ANONYMOUS.fullmatch(key)} - set(settings)
    owners: dict[str, list[str]] = {}
    for target, reads in updates:
        for slot in reads & nameless:
            owners.setdefault(slot, []).append(target)
    slots = sorted(owners, key=_number)
    trained = list(dict.fromkeys(owners[slot][0] for slot in slots))
    repeated = [[name] for name in trained] * (len(slots) // max(len(trained), 1))
    shapes = all(arrays[slot].shape == arrays[owners[slot][0]].shape for slot in slots)
    if not slots or [owners[s] for s in slots] != repeated or not shapes or {t for t, _ in updates} != set(trained):
        return None
    if not _are_all(slots, arrays):
        return None
    writers = {slot: [(op, reads) for target, op, reads in steps if target == slot] for slot in slots}
    counted = [target for target, op, _ in steps if nodes.op(op) == "AssignAdd" and target in settings]
    if any(len(ops) != 1 for ops in writers.values()):
        return None
    fitting = [c for c in CLASSES if _fits(c, settings, slots, len(trained), writers, counted, nodes)]
    rate_is_read = all(settings[c.settings.index(RATE)] in reads for c in fitting for _, reads in updates)
    if len(fitting) != 1 or not rate_is_read:
        return None
    named = dict(zip(fitting[0].settings, settings, strict=True))
    return Keras1Optimizer(fitting[0].name, named, tuple(slots), tuple(trained))


def _are_all(slots: Sequence[str], arrays: Mapping[str, LazyArray]) -> bool:
    """Whether the slots' numbers are consecutive, and no other array than scalars has a number next to them."""
    numbers = [_number(slot) for slot in slots]
    beside = [arrays[key].shape for key in arrays if _number(key) in (numbers[0] - 1, numbers[-1] + 1)]
    return numbers == list(range(numbers[0], numbers[-1] + 1)) and set(beside) <= {()}


def _fits(
    kind: _Class,
    settings: Sequence[str],
    slots: Sequence[str],
    count: int,
    writers: Mapping[str, Sequence[tuple[str, frozenset[str]]]],
    counted: Sequence[str],
    nodes: Nodes,
) -> bool:
    """Whether updates read the same settings as those of a class."""
    if len(settings) != len(kind.settings) or len(slots) != count * len(kind.slots):
        return False
    named = dict(zip(settings, kind.settings, strict=True))
    if any(named[key] != ITERATIONS for key in counted):
        return False
    for i, slot in enumerate(slots):
        op, reads = writers[slot][0]
        slot_settings, names = set(kind.slots[i // count]), {named[key] for key in reads if key in named}
        if names != slot_settings and not (RATE in slot_settings and names == slot_settings | {ITERATIONS, DECAY}):
            return False
        last = nodes.op(nodes.source(nodes.inputs[op][1])).removesuffix("V2")
        if kind.last and i // count == len(kind.slots) - 1 and last != kind.last:
            return False
    return True
