"""Load optimizers from the slot-variable layout, docs/formats/slot-variables.md."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from optim import configs, schedules, slot_layout
from optim.arguments import LearningRate
from optim.checkpoints import assigning
from optim.checkpoints.assigning import Value
from optim.checkpoints.saving import Variables, named_variables
from optim.errors import CheckpointError, UnsupportedError
from optim.layouts import placement
from optim.lazy import uses_tensorflow
from optim.optimizer import Optimizer
from optim.options.loss_scale import DYNAMIC
from optim.options.master_copies import LOW_PRECISION
from optim.slot_layout import Metadata, VariableEntry
from optim.state.tracked import unwrap


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
    """What a slot-variable checkpoint holds; arrays are not read.

    Args:
      path: the folder.

    Returns:
      `.algorithm .config .iterations .variables .slots .provenance`; sizes are those of whole tensors.

    Raises:
      CheckpointError: a missing or damaged checkpoint.
    """
    stored = _open(os.fspath(path))
    metadata = stored.metadata
    slots = {
        slot: {name: tuple(stored.shapes[slot_layout.slot_key(slot, name)]) for name in owners}
        for slot, owners in metadata.slots.items()
    }
    iterations = int(stored.tensor(slot_layout.scalar_key(slot_layout.ITERATIONS)))
    return CheckpointInfo(
        metadata.class_name, metadata.config, iterations, metadata.variables, slots, metadata.provenance
    )


@dataclass(frozen=True)
class _Stored:
    """A checkpoint as TensorFlow reads it. Its reader makes the maps anew each time, with all keys in them."""

    folder: str
    reader: Any
    metadata: Metadata
    shapes: Mapping[str, Any]
    dtypes: Mapping[str, tf.DType]

    def tensor(self, key: str) -> Any:
        return _tensor(self.reader, key, self.folder)

    def value(self, key: str, what: str) -> Value:
        return Value(
            f"{self.folder}: {what}", tuple(self.shapes[key]), self.dtypes[key].name, partial(self.tensor, key)
        )


def _open(folder: str) -> _Stored:
    prefix = slot_layout.current_prefix(folder)
    try:
        reader = tf.train.load_checkpoint(prefix)
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
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
    return _Stored(folder, reader, metadata, shapes, dtypes)


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
    master_copies: bool | None = None,
    loss_scale: float | str | None = None,
    learning_rate: LearningRate | None = None,
    custom_objects: Mapping[str, type[Optimizer]] | None = None,
) -> Optimizer:
    """The optimizer of a slot-variable checkpoint, with its state, on the given variables wherever they are.

    Args:
      path: the folder.
      variables: a mapping name -> variable, or a sequence matched by `variable.name`: every variable of the checkpoint,
        or with `restore_variables=False` at least those that the optimizer trains.
      mesh: the mesh of all variables; None finds it from them.
      restore_variables: also assign the stored values to `variables`. Those that were migrated as fresh keep their own
        values and get new slots, and so does what a grown one has beyond the stored shape.
      slot_placement: another placement than the saved one.
      master_copies: True gives float16 and bfloat16 variables float32 copies though the saved optimizer had none; the
        slots are widened, and the copies start as the variables. With copies in the checkpoint, it is these from which
        training goes on, also with `restore_variables=False`.
      loss_scale: another `loss_scale` than the saved one; a dynamic scale that was not saved starts anew.
      learning_rate: a number, schedule or callable instead of the saved one; needed where that was a schedule of your
        own, of which only a name and arguments are saved.
      custom_objects: classes by name, where the saved optimizer is a subclass of your own.

    Returns:
      An optimizer built on the variables; its next step is the one that the saved optimizer would have taken.

    Raises:
      CheckpointError: a missing or damaged checkpoint, an unknown class, or variables that are missing, extra, or of
        another shape or dtype, all of them listed. Then nothing was assigned.
    """
    _check_backend()
    stored = _open(os.fspath(path))
    folder, metadata = stored.folder, stored.metadata
    named = named_variables(variables)
    trained = _check_variables(folder, metadata, named, restore_variables)
    changes = _changes(slot_placement, master_copies, loss_scale) | _rate(folder, metadata, learning_rate)
    optimizer = _make(folder, metadata, mesh, changes, custom_objects or {})
    given = [named[name] for name in trained]
    optimizer._state.track(given, trained)
    optimizer.build(given)
    values = _state_values(stored, optimizer, learning_rate is None)
    todo = assigning.state_assignments(optimizer, values, fresh=True)
    if restore_variables:
        todo += _variable_assignments(stored, named)
    assigning.assign_all(todo)
    if slot_layout.GATHERED not in metadata.slots:
        assigning.settle(optimizer)
    copied = metadata.slots.get(slot_layout.MASTER, ())
    missing = [named[name] for name in trained if name not in copied]
    if missing and optimizer.master_copies:
        optimizer.refresh_master_copies(missing)
    return optimizer


def _check_backend() -> None:
    if not uses_tensorflow():
        raise UnsupportedError(
            "load_checkpoint makes optimizers of TensorFlow, and Keras runs on another backend. Import tensorflow"
            " before optim is used"
        )


def _changes(
    slot_placement: placement.Placement | None, master_copies: bool | None, loss_scale: float | str | None
) -> dict[str, Any]:
    """What the saved config is to say otherwise."""
    wanted = {"slot_placement": slot_placement, "master_copies": master_copies, "loss_scale": loss_scale}
    changes: dict[str, Any] = {option: value for option, value in wanted.items() if value is not None}
    if loss_scale not in (None, DYNAMIC):
        changes["loss_scale_growth_steps"] = None  # which only a dynamic scale has
    return changes


def _rate(folder: str, metadata: Metadata, given: Any) -> dict[str, Any]:
    """The learning rate to use instead of the saved one, if any. Raises CheckpointError where one has to be given."""
    saved = metadata.config.get("learning_rate")
    if given is not None:
        return {"learning_rate": given}
    if isinstance(saved, Mapping) and not schedules.is_known(saved):
        name = str(saved.get("class_name")).rpartition(">")[2]
        raise CheckpointError(
            f"the optimizer in {folder} had the learning rate {name}({saved.get('config')}), a schedule of your own:"
            f" pass the object, load_checkpoint(..., learning_rate={name}(...))"
        )
    return {}


def _check_variables(folder: str, metadata: Metadata, named: Mapping[str, Any], all_of_them: bool) -> list[str]:
    """Names of the variables to train, in build order; raises if `named` does not fit the checkpoint."""
    owners = {name for names in metadata.slots.values() for name in names}
    table = {e.name: e for e in metadata.variables}
    trained = [e.name for e in table.values() if e.name in owners or (e.trainable and (owners or e.name in named))]
    needed = list(table) if all_of_them else trained
    problems = [f"missing {name!r} {table[name].shape}" for name in needed if name not in named]
    if all_of_them:
        lacking = [e.name for e in table.values() if not e.stored and e.fresh != slot_layout.WHOLE]
        problems += [f"no value of {name!r} (pass restore_variables=False)" for name in lacking]
    problems += [f"extra {name!r} {tuple(unwrap(v).shape)}" for name, v in named.items() if name not in table]
    for name in [n for n in named if n in table]:
        variable, entry = unwrap(named[name]), table[name]
        if not entry.fits(tuple(variable.shape)):
            problems.append(f"{name!r} has shape {tuple(variable.shape)}, the checkpoint {entry.shape}")
        elif variable.dtype.name != entry.dtype and entry.stored:
            problems.append(f"{name!r} is {variable.dtype.name}, in the checkpoint {entry.dtype}")
    if problems:
        raise CheckpointError(f"the variables do not fit {folder}: {'; '.join(problems)}")
    return trained


def _make(
    folder: str,
    metadata: Metadata,
    mesh: dtensor.Mesh | None,
    changes: Mapping[str, Any],
    custom_objects: Mapping[str, type[Optimizer]],
) -> Optimizer:
    name = metadata.class_name
    cls = configs.class_named(name, custom_objects)
    if cls is None:
        raise CheckpointError(
            f"{folder} holds an optimizer of class {name!r}, which optim does not have; pass"
            f" custom_objects={{{name!r}: the class}}"
        )
    config = {**metadata.config, "mesh": mesh, **changes}
    made: Optimizer = cls.from_config(configs.with_members(config, custom_objects))
    return made


def _state_values(stored: _Stored, optimizer: Optimizer, saved_rate: bool) -> assigning.StateValues:
    """What to assign. `saved_rate`: whether the saved learning rate is among it."""
    here = {t.name: t for t in optimizer._state.tracked}
    may_grow = _may_grow(stored)
    slots = {
        slot: {
            name: _slot_value(stored, slot, name, optimizer._state.slots.find(slot, here[name]), name in may_grow)
            for name in owners
        }
        for slot, owners in stored.metadata.slots.items()
    }
    scalars = {
        name: _scalar(stored, name, variable.dtype)
        for name, variable in optimizer._state.scalars.items()
        if slot_layout.scalar_key(name) in stored.shapes
    }
    kept = set() if saved_rate else {slot_layout.LEARNING_RATE}
    if stored.metadata.config.get("loss_scale") != DYNAMIC:  # then a dynamic scale, if there is one now, starts anew
        kept |= {slot_layout.LOSS_SCALE, slot_layout.FINITE_STEPS}
    for name in kept & set(optimizer._state.scalars):
        variable = optimizer._state.scalars[name]
        scalars[name] = Value(name, (), variable.dtype.name, partial(placement.to_host, variable))
    return assigning.StateValues(slots, scalars, stored.folder)


def _may_grow(stored: _Stored) -> set[str]:
    return {entry.name for entry in stored.metadata.variables if entry.fresh == slot_layout.ADDED}


def _slot_value(stored: _Stored, slot: str, name: str, variable: tf.Variable | None, may_grow: bool) -> Value:
    value = stored.value(slot_layout.slot_key(slot, name), f"slot {slot!r} of {name!r}")
    if variable is not None and variable.dtype == tf.float32 and tf.as_dtype(value.dtype) in LOW_PRECISION:
        # saved without master copies
        narrow = value
        value = replace(narrow, dtype="float32", load=lambda: np.asarray(narrow.load()).astype(np.float32))
    return assigning.grown(value, variable) if may_grow and variable is not None else value


def _scalar(stored: _Stored, name: str, dtype: tf.DType) -> Value:
    """A variable of the whole optimizer, in the dtype that it has here, as a rate may have been written in another."""
    value = stored.value(slot_layout.scalar_key(name), f"{name!r} of the optimizer")
    return replace(value, dtype=dtype.name, load=lambda: np.asarray(value.load()).astype(dtype.as_numpy_dtype))


def _variable_assignments(stored: _Stored, named: Mapping[str, Any]) -> list[assigning.Assignment]:
    may_grow, made = _may_grow(stored), []
    for name in (entry.name for entry in stored.metadata.variables if entry.stored):
        value, variable = stored.value(slot_layout.variable_key(name), f"variable {name!r}"), unwrap(named[name])
        made.append(assigning.Assignment(variable, assigning.grown(value, variable) if name in may_grow else value))
    return made
