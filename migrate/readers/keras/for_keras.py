"""Read an optimizer of `optim` in a file of Keras, as `optim.for_keras` saves it (`optim/keras/saved.py`).

Its config is that of the `optim` class, with the class as `algorithm`. Its variables are named `iterations` and
`<slot>.<position>`: the position of the variable among the trained ones, in the model's order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from migrate.algorithms import rates
from migrate.bytes.arrays import LazyArray
from migrate.claims import FILE, Origin
from migrate.errors import AmbiguousError, ContradictionError, DamagedFileError, MissingHintError
from migrate.readers.keras.layers import arrange
from migrate.readers.keras.tree import Node
from migrate.releases.versions import Versions
from migrate.state import OptimizerState, Stored, StoredModel, StoredVariable
from optim import slot_layout
from optim.errors import UnsupportedError

REGISTERED = "dtopt>KerasOptimizer"
OPTIMIZER, VARS = "optimizer", "vars"
_SLOT = re.compile(r"(\w+)\.(\d+)")


def is_config(optimizer: Mapping[str, Any] | None) -> bool:
    """Whether `optim.for_keras` made a compiled model's optimizer."""
    return optimizer is not None and optimizer.get("registered_name") == REGISTERED


def check_weights(root: Node, where: str) -> None:
    """Refuse weights of such an optimizer without its config. Raises MissingHintError."""
    optimizer = root.children.get(OPTIMIZER)
    if optimizer is not None and any(_SLOT.fullmatch(key) for key in optimizer.arrays):
        raise MissingHintError(
            f"{where} holds the state of an optimizer that optim.for_keras made, without its config, which a .keras"
            " file of the same model has: migrate that one, or load these weights into the model in Keras and save it"
        )


def read(
    root: Node, where: str, config: Mapping[str, Any], optimizer: Mapping[str, Any], versions: Versions
) -> OptimizerState:
    """Return the state, in exactly the terms in which it was saved.

    Args:
      root: the file's tree. config: of the model. optimizer: `{"class_name", "config"}` as stored.

    Raises:
      UnsupportedError: a class that is not public in `optim`. AmbiguousError: the order of the variables is unknown.
      DamagedFileError, ContradictionError: it contradicts itself.
    """
    settings = _without_tuple_marks(dict(optimizer["config"]))
    settings["learning_rate"] = rates.named(optimizer["config"].get("learning_rate"), settings.get("learning_rate"))
    algorithm = settings.pop("algorithm", None)
    settings.pop("variables", None)  # the order for weight lists, which this format has not
    if not isinstance(algorithm, str) or not algorithm.isidentifier():
        raise UnsupportedError(
            f"{where}: for_keras was given {algorithm!r}, which is not a class of optim: load the model where that"
            " class is known, and save its optimizer with optim.save_checkpoint"
        )
    arrays = root.children[OPTIMIZER].arrays if OPTIMIZER in root.children else {}
    scalars = {key: _number(array) for key, array in arrays.items() if not _SLOT.fullmatch(key)}
    if slot_layout.ITERATIONS not in scalars:
        raise DamagedFileError(f"{where} holds no {slot_layout.ITERATIONS} of its optimizer; save the model again")
    steps = scalars.pop(slot_layout.ITERATIONS)
    if not float(steps).is_integer() or steps < 0:
        raise DamagedFileError(f"{where}: {slot_layout.ITERATIONS} of its optimizer is {steps!r}, no number of steps")
    _check_rate(settings.get("learning_rate"), scalars.pop(slot_layout.LEARNING_RATE, None), where)
    root.children.pop(OPTIMIZER)
    variables, layers, twins = arrange(root, config, True)
    ordered = layers.ordered() and twins is None
    slots = _slots_by_variable(arrays, [v for v in variables if v.trainable], ordered, where)
    names = {name for owners in slots.values() for name in owners}
    evidence = (f"its optimizer was made by optim.for_keras: {algorithm}",)
    compiled = config.get("compile_config")
    model = StoredModel(config, compiled if isinstance(compiled, Mapping) else None, None)
    stored = Stored("keras", None, evidence, dict(optimizer), variables, versions=versions, model=model)
    return OptimizerState(
        algorithm=algorithm,
        hyperparameters=settings,
        iterations=int(steps),
        iterations_source=f"{OPTIMIZER}/{VARS}/{slot_layout.ITERATIONS}",
        slots=slots,
        variables=tuple(sorted(variables, key=lambda v: v.name not in names)),
        scalars=scalars,
        matched={f"{slot}/{name}": "position" for slot, owners in slots.items() for name in owners},
        source=stored,
        origins=(Origin("optimizer", algorithm, FILE, "the optimizer's config in the source, which is dtopt's own"),),
    )


def _without_tuple_marks(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.get("class_name") == "__tuple__":
            return [_without_tuple_marks(part) for part in value.get("items", ())]
        return {
            key: _without_tuple_marks(part) for key, part in value.items() if key not in ("module", "registered_name")
        }
    return [_without_tuple_marks(part) for part in value] if isinstance(value, list) else value


def _number(array: LazyArray) -> float:
    if array.shape != ():
        raise DamagedFileError(f"{array.stored_as} has shape {list(array.shape)}; it must be a single number")
    return np.asarray(array.load())[()].item()


def _check_rate(configured: Any, stored: float | None, where: str) -> None:
    if isinstance(configured, (int, float)) and stored is not None and np.float32(configured) != np.float32(stored):
        raise ContradictionError(
            f"{where}: learning_rate is {configured!r} in the config of its optimizer and {stored!r} among its"
            " variables, which are written at once; save the model again"
        )


def _slots_by_variable(
    arrays: Mapping[str, LazyArray], trained: list[StoredVariable], ordered: bool, where: str
) -> dict[str, dict[str, LazyArray]]:
    matches = {key: match for key in arrays if (match := _SLOT.fullmatch(key))}
    count = max((int(match[2]) + 1 for match in matches.values()), default=0)
    if count and count != len(trained):
        raise DamagedFileError(
            f"{where}: its optimizer has slots of {count} variables, and its model {len(trained)} that are trained:"
            " layers were frozen or added since it was compiled; save the model as it was trained"
        )
    if count > 1 and not ordered:
        raise AmbiguousError(
            f"{where}: nothing shows the order in which its layers' variables are trained; load the model and save"
            " its optimizer with optim.save_checkpoint, which keeps names"
        )
    slots: dict[str, dict[str, LazyArray]] = {}
    for key, match in sorted(matches.items(), key=lambda item: int(item[1][2])):
        slots.setdefault(match[1], {})[trained[int(match[2])].name] = arrays[key]
    lacking = [f"{slot}.{i}" for slot in slots for i, v in enumerate(trained) if v.name not in slots[slot]]
    if lacking:
        raise DamagedFileError(f"{where}: {lacking[0]} of its optimizer is missing; the file is incomplete")
    return slots
