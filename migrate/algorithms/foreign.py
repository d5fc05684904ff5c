"""State of a class with an unknown rule, migrated for users who bring the rule: `--set own_rule=true`.

Slots keep their names of the source. Settings become arguments of the user's class. The result is never exact.
`optim.load_checkpoint(..., custom_objects={NAME: class})` continues with a subclass of `optim.RuleOptimizer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optim
from migrate.algorithms import keras_config
from migrate.algorithms.spec import Algorithm, Block, Config, SlotSpec
from migrate.bytes.arrays import LazyArray
from migrate.errors import MissingHintError
from migrate.generations import SLOT_LAST, traits
from migrate.state import Stored
from optim.errors import UnsupportedError
from optim.rule import SCALAR, VARIABLE, Slot

OWN_RULE = "own_rule"
HOW = f"to migrate its state for a custom rule, a subclass of optim.RuleOptimizer, add --set {OWN_RULE}=true"
COUNTERS = ("iter", "iteration", "iterations", "learning_rate")


def algorithm(class_name: str, config: Config, stored: Stored) -> Algorithm:
    """Return an algorithm for such a class, with slots and settings under their names in the source.

    Raises:
      UnsupportedError: the source keeps slots in an order that only the class knows.
      MissingHintError: the source and the user specify no learning rate.
    """
    if "learning_rate" not in config:
        raise MissingHintError(
            f"the source does not contain the learning rate of {class_name}. Give it with --set"
            " learning_rate=VALUE; use 1 if the class does not have one"
        )
    arrays, listed = _slots(stored), not stored.slots and stored.weights is not None
    by_order = {} if arrays or not listed else _in_blocks(stored)
    if listed and not arrays and not by_order:
        raise UnsupportedError(
            f"dtopt does not know {class_name}, and neither names nor shapes in its list of weights"
            " distinguish slots from variables. Start a new optimizer from the weights of the model"
        )
    arrays = arrays or by_order
    slots = tuple(SlotSpec(Slot(name, unit="unknown", like=_like(per)), (name,)) for name, per in arrays.items())
    settings = {key for key, value in config.items() if isinstance(value, (int, float))} - {*COUNTERS, "decay"}
    return Algorithm(
        name=called(class_name),
        slots=slots,
        blocks=lambda generation, config: (tuple(Block((name,)) for name in by_order),) if by_order else (),
        arguments=_arguments,
        defaults=lambda generation: {},
        adjust=lambda arguments, present: ({}, tuple(slot.name for slot in slots if slot.name in present)),
        counts=frozenset({stored.generation or ""}) if by_order and _is_counted(stored) else frozenset(),
        scalars=tuple(sorted(settings)),
        is_foreign=True,
    )


def called(class_name: str) -> str:
    """Return a name that is not one of `optim`'s own classes."""
    package, _, plain = class_name.rpartition(">")
    taken = {name.lower() for name in optim.__all__}
    return f"{package or 'own'}>{plain}" if plain.lower() in taken else plain


def doubt(name: str) -> str:
    return (
        f"dtopt does not know the rule of {name} and copies its state unchanged. Load it with"
        f" optim.load_checkpoint(..., custom_objects={{{name!r}: YourClass}})"
    )


def _slots(stored: Stored) -> dict[str, list[LazyArray]]:
    if stored.weights is None:
        return {name.lstrip("_"): list(per.values()) for name, per in stored.slots.items()}
    names = [v.name.removesuffix(":0") for v in stored.variables]
    slots: dict[str, list[LazyArray]] = {}
    for stored_as, array in stored.weights:
        slot = _slot(stored_as.removesuffix(":0"), names, traits(stored.generation).names_in_list == SLOT_LAST)
        if slot:
            slots.setdefault(slot, []).append(array)
    return slots


def _in_blocks(stored: Stored) -> dict[str, list[LazyArray]]:
    """Return slots by number, `slot_1` first, of a list that stores one slot of all variables after the other.

    Keras's own classes wrote such lists up to OptimizerV2. The result is empty if shapes do not show this order.
    """
    arrays = [array for _, array in stored.weights or ()][_is_counted(stored) :]
    shapes = [array.shape for array in arrays]
    trained = [v.shape for v in stored.variables if v.trainable is not False]
    if not traits(stored.generation).is_slot_major or not trained or not arrays or len(arrays) % len(trained):
        return {}
    count = len(arrays) // len(trained)
    if shapes != trained * count:
        return {}
    return {f"slot_{i + 1}": arrays[i * len(trained) : (i + 1) * len(trained)] for i in range(count)}


def _is_counted(stored: Stored) -> bool:
    """Return whether a list begins with a number, such as the step counter."""
    return any(array.shape == () for _, array in (stored.weights or ())[:1])


def _slot(name: str, variables: Sequence[str], slot_last: bool) -> str:
    """Return the slot in `<optimizer>/<variable>/<slot>`, or in `<optimizer>/<slot>/<variable>`."""
    if slot_last:
        head, _, tail = name.rpartition("/")
        return tail if any(head == v or head.endswith(f"/{v}") for v in variables) else ""
    ends = [v for v in variables if name.endswith(f"/{v}")]
    return name.removesuffix(f"/{max(ends, key=len)}").rpartition("/")[2] if ends else ""


def _like(arrays: Sequence[LazyArray]) -> str:
    return SCALAR if all(array.shape == () for array in arrays) else VARIABLE


def _arguments(config: Mapping[str, Any], generation: str) -> dict[str, Any]:
    shared = keras_config.SHARED | keras_config.NO_EFFECT
    kinds = (int, float, str, list, type(None))
    return {key: value for key, value in config.items() if key not in shared and isinstance(value, kinds)}
