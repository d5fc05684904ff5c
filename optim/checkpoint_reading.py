"""Load optimizers from the slot-variable layout, docs/formats/slot-variables.md."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim import assigning, placement, slot_layout
from optim.assigning import Value
from optim.checkpoint import Variables, named_variables
from optim.errors import CheckpointError
from optim.optimizer import Optimizer
from optim.slot_layout import Metadata, VariableEntry
from optim.variables import unwrap


@dataclass(frozen=True)
class CheckpointInfo:
    """What a slot-variable checkpoint holds.

    Attributes:
      algorithm: name of the optimizer's class.
      config: what its `get_config()` gave.
      iterations: steps taken.
      variables: (name, shape, dtype, trainable) of every model variable.
      slots: shape by slot name and variable name.
      provenance: who wrote it, from what.
    """

    algorithm: str
    config: Mapping[str, Any]
    iterations: int
    variables: tuple[VariableEntry, ...]
    slots: Mapping[str, Mapping[str, tuple[int, ...]]]
    provenance: Mapping[str, Any]


def describe_checkpoint(path: str | os.PathLike[str]) -> CheckpointInfo:
    """What a slot-variable checkpoint holds. Raises CheckpointError if it is none, or damaged."""
    reader, metadata = _open(os.fspath(path))
    shapes = reader.get_variable_to_shape_map()
    slots = {
        slot: {name: tuple(shapes[slot_layout.slot_key(slot, name)]) for name in owners}
        for slot, owners in metadata.slots.items()
    }
    iterations = int(_tensor(reader, slot_layout.scalar_key(slot_layout.ITERATIONS), os.fspath(path)))
    return CheckpointInfo(
        metadata.class_name, metadata.config, iterations, metadata.variables, slots, metadata.provenance
    )


def _open(folder: str) -> tuple[Any, Metadata]:
    prefix = slot_layout.current_prefix(folder)
    try:
        reader = tf.train.load_checkpoint(prefix)
        shapes = reader.get_variable_to_shape_map()
    except (tf.errors.OpError, ValueError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"{folder} is damaged: {_first_line(error)}") from error
    if slot_layout.METADATA_KEY not in shapes:
        raise CheckpointError(
            f"{folder} is a TensorFlow checkpoint without dtopt's metadata; write one with optim.save_checkpoint, or"
            " bring it over with `dtopt migrate checkpoint`"
        )
    text = _tensor(reader, slot_layout.METADATA_KEY, folder)
    metadata = Metadata.from_json(text.decode("utf-8") if isinstance(text, bytes) else str(text), folder)
    metadata.compare_keys(shapes, folder)
    return reader, metadata


def _tensor(reader: Any, key: str, where: str) -> Any:
    try:
        return reader.get_tensor(key)
    except (tf.errors.OpError, ValueError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"{where} is damaged: cannot read {key}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def load_checkpoint(
    path: str | os.PathLike[str],
    variables: Variables,
    mesh: dtensor.Mesh | None = None,
    restore_variables: bool = True,
    *,
    slot_placement: placement.Placement | None = None,
    custom_objects: Mapping[str, type[Optimizer]] | None = None,
) -> Optimizer:
    """The optimizer of a slot-variable checkpoint, with its state, on the given variables wherever they are.

    Args:
      path: the folder.
      variables: a mapping name -> variable, or a sequence matched by `variable.name`: every variable of the checkpoint,
        or with `restore_variables=False` at least those that the optimizer trains.
      mesh: the mesh of all variables; None finds it from them.
      restore_variables: also assign the stored values to `variables`.
      slot_placement: another placement than the saved one.
      custom_objects: classes by name, where the saved optimizer is a subclass of your own.

    Returns:
      An optimizer built on the variables; its next step is the one that the saved optimizer would have taken.

    Raises:
      CheckpointError: no such checkpoint, a damaged one, an unknown class, or variables that are missing, extra, or of
        another shape or dtype, all of them listed. Then nothing was assigned.
    """
    folder = os.fspath(path)
    reader, metadata = _open(folder)
    named = named_variables(variables)
    trained = _check_variables(folder, metadata, named, restore_variables)
    optimizer = _make(folder, metadata, mesh, slot_placement, custom_objects or {})
    given = [named[name] for name in trained]
    optimizer._state.track(given, trained)
    optimizer.build(given)
    todo = assigning.state_assignments(optimizer, _state_values(folder, reader, metadata, optimizer), fresh=True)
    if restore_variables:
        todo += _variable_assignments(folder, reader, metadata, named)
    assigning.assign_all(todo)
    assigning.settle(optimizer)
    return optimizer


def _check_variables(folder: str, metadata: Metadata, named: Mapping[str, Any], all_of_them: bool) -> list[str]:
    """Names of the variables to train, in build order; raises if `named` does not fit the checkpoint."""
    owners = {name for names in metadata.slots.values() for name in names}
    trained = [e.name for e in metadata.variables if e.name in owners or e.trainable]
    table = {e.name: e for e in metadata.variables}
    needed = list(table) if all_of_them else trained
    problems = [f"missing {name!r} {table[name].shape}" for name in needed if name not in named]
    if all_of_them:
        problems += [f"no value of {e.name!r} (pass restore_variables=False)" for e in table.values() if not e.stored]
    problems += [f"extra {name!r} {tuple(unwrap(v).shape)}" for name, v in named.items() if name not in table]
    for name in [n for n in named if n in table]:
        variable, entry = unwrap(named[name]), table[name]
        if tuple(variable.shape) != entry.shape:
            problems.append(f"{name!r} has shape {tuple(variable.shape)}, the checkpoint {entry.shape}")
        elif variable.dtype.name != entry.dtype:
            problems.append(f"{name!r} is {variable.dtype.name}, in the checkpoint {entry.dtype}")
    if problems:
        raise CheckpointError(f"the variables do not fit {folder}: {'; '.join(problems)}")
    return trained


def _make(
    folder: str,
    metadata: Metadata,
    mesh: dtensor.Mesh | None,
    slot_placement: placement.Placement | None,
    custom_objects: Mapping[str, type[Optimizer]],
) -> Optimizer:
    name = metadata.class_name
    cls = custom_objects.get(name)
    if cls is None:
        found = getattr(optim, name, None) if name in optim.__all__ else None
        if not (isinstance(found, type) and issubclass(found, Optimizer)):
            raise CheckpointError(
                f"{folder} holds an optimizer of class {name!r}, which optim does not have; pass"
                f" custom_objects={{{name!r}: the class}}"
            )
        cls = found
    config = {**metadata.config, "mesh": mesh}
    if slot_placement is not None:
        config["slot_placement"] = slot_placement
    return cls.from_config(config)


def _state_values(folder: str, reader: Any, metadata: Metadata, optimizer: Optimizer) -> assigning.StateValues:
    slots = {
        slot: {
            name: _value(folder, reader, slot_layout.slot_key(slot, name), f"slot {slot!r} of {name!r}")
            for name in owners
        }
        for slot, owners in metadata.slots.items()
    }
    shapes = reader.get_variable_to_shape_map()
    scalars = {
        name: _scalar(folder, reader, name, variable.dtype)
        for name, variable in optimizer._state.scalars.items()
        if slot_layout.scalar_key(name) in shapes
    }
    return assigning.StateValues(slots, scalars, folder)


def _value(folder: str, reader: Any, key: str, what: str) -> Value:
    shape, dtype = reader.get_variable_to_shape_map()[key], reader.get_variable_to_dtype_map()[key]
    return Value(f"{folder}: {what}", tuple(shape), dtype.name, partial(_tensor, reader, key, folder))


def _scalar(folder: str, reader: Any, name: str, dtype: tf.DType) -> Value:
    """In the dtype of its variable, as a rate may have been written in another one."""

    def load() -> np.ndarray:
        return np.asarray(_tensor(reader, slot_layout.scalar_key(name), folder)).astype(dtype.as_numpy_dtype)

    return Value(f"{folder}: {name!r} of the optimizer", (), dtype.name, load)


def _variable_assignments(
    folder: str, reader: Any, metadata: Metadata, named: Mapping[str, Any]
) -> list[assigning.Assignment]:
    keys = {entry.name: slot_layout.variable_key(entry.name) for entry in metadata.variables}
    return [
        assigning.Assignment(unwrap(named[name]), _value(folder, reader, key, f"variable {name!r}"))
        for name, key in keys.items()
    ]
