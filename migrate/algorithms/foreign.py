"""State of a class whose rule is not known here, carried for people who bring the rule: `--set own_rule=true`.

Slots keep the names that the source has, settings become the arguments of a class of one's own, and nothing of it is
ever exact. `optim.load_checkpoint(..., custom_objects={NAME: class})` goes on with a subclass of `optim.RuleOptimizer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optim
from migrate.algorithms import keras_config
from migrate.algorithms.spec import Algorithm, Blocks, Config, SlotSpec
from migrate.bytes.arrays import LazyArray
from migrate.errors import MissingHintError
from migrate.generations import GENERATIONS
from migrate.state import Stored
from optim.errors import UnsupportedError
from optim.rule import SCALAR, VARIABLE, Slot

OWN_RULE = "own_rule"
HOW = f"to carry its state for a rule of your own, as a subclass of optim.RuleOptimizer, add --set {OWN_RULE}=true"
COUNTERS = ("iter", "iteration", "iterations", "learning_rate")


def algorithm(class_name: str, config: Config, stored: Stored) -> Algorithm:
    """What is known of such a class: slots and settings by the names that the source has for them.

    Raises:
      UnsupportedError: the source keeps slots in an order that only the class knows.
      MissingHintError: nothing says its learning rate.
    """
    if "learning_rate" not in config:
        raise MissingHintError(
            f"nothing says the learning rate of {class_name}; say it with --set learning_rate=VALUE, 1 if it has none"
        )
    arrays = _slots(stored)
    if stored.weights is not None and not arrays:
        raise UnsupportedError(
            f"{class_name} is not known here, and its list of weights has no names that say slot and variable; a"
            " TensorFlow checkpoint of the same model has them"
        )
    slots = tuple(SlotSpec(Slot(name, unit="unknown", like=_like(per)), (name,)) for name, per in arrays.items())
    settings = {key for key, value in config.items() if isinstance(value, (int, float))} - {*COUNTERS, "decay"}
    return Algorithm(
        name=called(class_name),
        slots=slots,
        blocks=_no_blocks,
        arguments=_arguments,
        defaults=lambda generation: {},
        adjust=lambda arguments, present: ({}, tuple(slot.name for slot in slots if slot.name in present)),
        counts=frozenset(),
        scalars=tuple(sorted(settings)),
        generations=frozenset(GENERATIONS),
        is_foreign=True,
    )


def called(class_name: str) -> str:
    """A name that is none of `optim`'s own classes."""
    package, _, plain = class_name.rpartition(">")
    taken = {name.lower() for name in optim.__all__}
    return f"{package or 'own'}>{plain}" if plain.lower() in taken else plain


def doubt(name: str) -> str:
    return (
        f"the rule of {name} is not known here and its state is carried as it is: go on with"
        f" optim.load_checkpoint(..., custom_objects={{{name!r}: YourClass}})"
    )


def _slots(stored: Stored) -> dict[str, list[LazyArray]]:
    if stored.weights is None:
        return {name.lstrip("_"): list(per.values()) for name, per in stored.slots.items()}
    names = [v.name.removesuffix(":0") for v in stored.variables]
    found: dict[str, list[LazyArray]] = {}
    for stored_as, array in stored.weights:
        slot = _slot(stored_as.removesuffix(":0"), names, stored.generation == "optimizer_v2")
        if slot:
            found.setdefault(slot, []).append(array)
    return found


def _slot(name: str, variables: Sequence[str], slot_last: bool) -> str:
    """The slot in `<optimizer>/<variable>/<slot>`, or in `<optimizer>/<slot>/<variable>`."""
    if slot_last:
        head, _, tail = name.rpartition("/")
        return tail if any(head == v or head.endswith(f"/{v}") for v in variables) else ""
    ends = [v for v in variables if name.endswith(f"/{v}")]
    return name.removesuffix(f"/{max(ends, key=len)}").rpartition("/")[2] if ends else ""


def _like(arrays: Sequence[LazyArray]) -> str:
    return SCALAR if all(array.shape == () for array in arrays) else VARIABLE


def _no_blocks(generation: str, config: Config) -> tuple[Blocks, ...]:
    return ()


def _arguments(config: Mapping[str, Any], generation: str) -> dict[str, Any]:
    shared = keras_config.SHARED | keras_config.NO_EFFECT
    kinds = (int, float, str, list, type(None))
    return {key: value for key, value in config.items() if key not in shared and isinstance(value, kinds)}
