"""Load optimizers from the slot-variable layout, docs/formats/slot-variables.md."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

import optim
from optim import configs, schedules, slot_layout
from optim.arguments import LearningRate
from optim.bits.storage import BFLOAT16, INT8
from optim.checkpoints import assigning, live, slot_dtypes
from optim.checkpoints.assigning import Value
from optim.checkpoints.stored import Stored
from optim.checkpoints.variables import Variables, dtype_called, handle, is_of_keras, named_variables
from optim.errors import CheckpointError, UnsupportedError
from optim.layouts.policies import LIKE_VARIABLE, Placement
from optim.lazy import uses_tensorflow
from optim.options.loss_scale import DYNAMIC
from optim.options.master_copies import LOW_PRECISION
from optim.slot_layout import Metadata

if TYPE_CHECKING:
    from tensorflow.experimental import dtensor

    from optim.optimizer import Optimizer

SAVED = "saved"
"""Of an argument: as in the checkpoint."""


def load_checkpoint(
    path: str | os.PathLike[str],
    variables: Variables,
    mesh: dtensor.Mesh | None = None,
    restore_variables: bool = True,
    *,
    slot_placement: Placement | None = None,
    master_copies: bool | None = None,
    loss_scale: float | str | None = None,
    slot_dtype: str | None = SAVED,
    learning_rate: LearningRate | None = None,
    custom_objects: Mapping[str, type[Optimizer]] | None = None,
) -> Any:
    """The optimizer of a slot-variable checkpoint, with its state, on the given variables wherever they are.

    Args:
      path: the folder.
      variables: a mapping name -> variable, or a sequence matched by `variable.name`: every variable of the checkpoint,
        or with `restore_variables=False` at least those that the optimizer trains.
      mesh: TensorFlow's mesh of all variables; None finds it from them.
      restore_variables: also assign the stored values to `variables`. Those that were migrated as fresh keep their own
        values and get new slots, and so does what a grown one has beyond the stored shape.
      slot_placement: another placement than the saved one.
      master_copies: True gives float16 and bfloat16 variables float32 copies even if the saved optimizer did not have
        them; the slots are widened, and the copies start as the variables. With copies in the checkpoint, training
        continues from these, also with `restore_variables=False`.
      loss_scale: another `loss_scale` than the saved one; a dynamic scale that was not saved starts again.
      slot_dtype: another `slot_dtype` than the saved one: None, `"bfloat16"` or `"int8"`. Slots that were stored in
        fewer bits are widened; others are rounded to nearest, or encoded.
      learning_rate: a number, schedule or callable instead of the saved one; needed where that was a schedule of your
        own, of which only a name and arguments are saved.
      custom_objects: classes by name, where the saved optimizer is a subclass of your own.

    Returns:
      An optimizer built on the variables; its next step is the one that the saved optimizer would have taken. For
      variables of Keras on JAX or PyTorch it is what `for_keras` makes, ready for `compile`; slots follow the layouts
      of the variables, and each device gets its part only. Without a mesh, a saved `slot_placement` has no effect.

    Raises:
      UnsupportedError: the saved optimizer has an option that this backend has not; the message names it.
      CheckpointError: a missing or damaged checkpoint, an unknown class, or variables that are missing, extra, or of
        another shape or dtype, all of them listed. Then nothing was assigned.
    """
    stored = Stored(os.fspath(path))
    folder, metadata = stored.folder, stored.metadata
    named = named_variables(variables)
    trained = _check_variables(folder, metadata, named, restore_variables)
    changes = _changes(slot_placement, master_copies, loss_scale) | _slot_dtype(metadata, slot_dtype)
    changes |= _rate(folder, metadata, learning_rate)
    on_keras = any(map(is_of_keras, named.values())) or not uses_tensorflow()
    if on_keras:
        _check_loss_scale(folder, changes.get("loss_scale", metadata.config.get("loss_scale")))
        changes = {**_without_effect(metadata), **changes}
        trained = [name for name in named if name in set(trained)]  # Keras steps arrays in the order of its model
    optimizer = _make(folder, metadata, {"mesh": mesh, **changes}, custom_objects or {})
    optimizer = _built(optimizer, [named[name] for name in trained], trained, on_keras)
    state = live.state_of(optimizer)
    values = _state_values(stored, state, learning_rate is None, slot_dtype)
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


def _check_loss_scale(folder: str, scale: Any) -> None:
    """Raises UnsupportedError: the optimizer scales its loss dynamically."""
    if scale == DYNAMIC:
        raise UnsupportedError(
            f"the optimizer in {folder} has loss_scale={DYNAMIC!r}, which Keras does on this backend. Load it with"
            " loss_scale=1.0 and wrap it:\nkeras.optimizers.LossScaleOptimizer(optimizer)"
        )


def _without_effect(metadata: Metadata) -> dict[str, Any]:
    """Options of TensorFlow at the values with which Keras takes them on another backend."""
    changes: dict[str, Any] = {"executor": "auto", "jit_compile": None, "repeated_rows": []}
    if rows := metadata.config.get("repeated_rows"):
        warnings.warn(
            f"repeated_rows={rows!r} of the saved optimizer has no effect here, because gradients of tables are dense",
            UserWarning,
            stacklevel=3,
        )
    if not _has_mesh():
        changes["slot_placement"] = LIKE_VARIABLE
    return {name: value for name, value in changes.items() if name in metadata.config}


def _has_mesh() -> bool:
    keras = import_module("keras")
    return keras.backend.backend() == "jax" and keras.distribution.distribution() is not None


def _built(optimizer: Any, variables: Sequence[Any], names: Sequence[str], on_keras: bool) -> Any:
    """The optimizer with slots of these variables, which it knows by these names."""
    if on_keras:
        optimizer = optim.for_keras(optimizer, import_module("keras"))
        optimizer.build(variables, names)
    else:
        optimizer._state.track(variables, names)
        optimizer.build(variables)
    return optimizer


def _changes(
    slot_placement: Placement | None, master_copies: bool | None, loss_scale: float | str | None
) -> dict[str, Any]:
    """What replaces values of the saved config."""
    options = {"slot_placement": slot_placement, "master_copies": master_copies, "loss_scale": loss_scale}
    changes: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
    if loss_scale not in (None, DYNAMIC):
        changes["loss_scale_growth_steps"] = None  # which only a dynamic scale has
    return changes


def _slot_dtype(metadata: Metadata, requested: str | None) -> dict[str, Any]:
    if requested == SAVED:
        return {}
    is_random = requested == BFLOAT16 or metadata.config.get("stochastic_rounding")
    return {"slot_dtype": requested} | ({} if is_random else {"rounding_seed": 0})


def _rate(folder: str, metadata: Metadata, rate: Any) -> dict[str, Any]:
    """The learning rate to use instead of the saved one, if any. Raises CheckpointError where one has to be given."""
    saved = metadata.config.get("learning_rate")
    if metadata.class_name == slot_layout.GROUPS_CLASS:
        _check_rates_of_groups(folder, metadata, rate)
        return {}
    if rate is not None:
        return {"learning_rate": rate}
    if isinstance(saved, Mapping) and not schedules.is_known(saved):
        name = str(saved.get("class_name")).rpartition(">")[2]
        raise CheckpointError(
            f"the optimizer in {folder} had the learning rate {name}({saved.get('config')}), a schedule of your own:"
            f" pass the object, load_checkpoint(..., learning_rate={name}(...))"
        )
    return {}


def _check_rates_of_groups(folder: str, metadata: Metadata, requested: Any) -> None:
    """Raises CheckpointError: one learning rate for all, or a group with a rate that cannot be made again."""
    if requested is not None:
        raise CheckpointError(
            f"each group in {folder} has its own learning rate; load without learning_rate, and set"
            " optimizer.members[i].learning_rate"
        )
    for number, (_, member) in enumerate(metadata.config["groups"]):
        rate = member["config"].get("learning_rate")
        if isinstance(rate, Mapping) and not schedules.is_known(rate):
            raise CheckpointError(
                f"group {number} in {folder} had a learning rate of class {rate.get('class_name')}, a schedule of your"
                " own; make the Groups in your program, and restore into them:"
                f"\ntf.train.Checkpoint(optimizer=groups).restore(tf.train.latest_checkpoint({folder!r}))"
            )


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
    problems += [f"extra {name!r} {handle(v).shape}" for name, v in named.items() if name not in table]
    for name in [n for n in named if n in table]:
        variable, entry = handle(named[name]), table[name]
        if not entry.fits(variable.shape):
            problems.append(f"{name!r} has shape {variable.shape}, the checkpoint {entry.shape}")
        elif variable.dtype != entry.dtype and entry.stored:
            problems.append(f"{name!r} is {variable.dtype}, in the checkpoint {entry.dtype}")
    if problems:
        raise CheckpointError(f"the variables do not fit {folder}: {'; '.join(problems)}")
    return trained


def _make(
    folder: str, metadata: Metadata, changes: Mapping[str, Any], custom_objects: Mapping[str, type[Optimizer]]
) -> Any:
    name = metadata.class_name
    cls = configs.class_named(name, custom_objects)
    if cls is None:
        raise CheckpointError(
            f"{folder} holds an optimizer of class {name!r}, which optim does not have; pass"
            f" custom_objects={{{name!r}: the class}}"
        )
    return cls.from_config(configs.with_members({**metadata.config, **changes}, custom_objects))


def _state_values(
    stored: Stored, state: live.LiveState, is_saved_rate: bool, slot_dtype: str | None = SAVED
) -> assigning.StateValues:
    """What to assign. `is_saved_rate`: whether the saved learning rate is among it."""
    here = {t.name: t for t in state.tracked}
    may_grow = _may_grow(stored)
    slots = {
        slot: {name: _slot_value(stored, slot, name, state.find(slot, here[name]), name in may_grow) for name in owners}
        for slot, owners in stored.metadata.slots.items()
    }
    if stored.metadata.config.get("slot_dtype") is not None or slot_dtype not in (SAVED, None):
        slots = slot_dtypes.converted(slots, lambda slot, name: state.find(slot, here[name]))
    scalars = {
        name: _scalar(stored, name, handle(variable).dtype)
        for name, variable in state.scalars.items()
        if slot_layout.scalar_key(name) in stored.reader
    }
    excluded = set() if is_saved_rate else {slot_layout.LEARNING_RATE}
    if stored.metadata.config.get("loss_scale") != DYNAMIC:  # then a dynamic scale, if there is one now, starts anew
        excluded |= {slot_layout.LOSS_SCALE, slot_layout.FINITE_STEPS}
    for name in excluded & set(state.scalars):
        variable = handle(state.scalars[name])
        scalars[name] = Value(name, (), variable.dtype, variable.to_host)
    return assigning.StateValues(slots, scalars, stored.folder)


def _may_grow(stored: Stored) -> set[str]:
    return {entry.name for entry in stored.metadata.variables if entry.fresh == slot_layout.ADDED}


def _slot_value(stored: Stored, slot: str, name: str, variable: Any, may_grow: bool) -> Value:
    value = stored.value(slot_layout.slot_key(slot, name), f"slot {slot!r} of {name!r}")
    if variable is None:
        return value
    dtype = handle(variable).dtype
    if dtype == "float32" and value.dtype in LOW_PRECISION:  # saved without master copies
        value = _converted(value, dtype)
    if slot == slot_layout.GATHERED and dtype != value.dtype:  # marks of TensorFlow may be large numbers
        marks = value
        value = replace(marks, dtype=dtype, load=lambda: (np.asarray(marks.load()) != 0).astype(dtype))
    if may_grow and dtype in slot_dtypes.CODES:
        raise CheckpointError(
            f"{value.what} may be larger in the live variable, and slot_dtype={INT8!r} has one scale for each block of"
            " its elements. Load it with slot_dtype=None, save it, and load that with the slot_dtype you want"
        )
    return assigning.grown(value, variable) if may_grow else value


def _scalar(stored: Stored, name: str, dtype: str) -> Value:
    """A variable of the whole optimizer, in the dtype that it has here, as a rate may have been written in another."""
    return _converted(stored.value(slot_layout.scalar_key(name), f"{name!r} of the optimizer"), dtype)


def _converted(value: Value, dtype: str) -> Value:
    return replace(value, dtype=dtype, load=lambda: np.asarray(value.load()).astype(dtype_called(dtype)))


def _variable_assignments(stored: Stored, named: Mapping[str, Any]) -> list[assigning.Assignment]:
    may_grow, assignments = _may_grow(stored), []
    for name in (entry.name for entry in stored.metadata.variables if entry.stored):
        value, variable = stored.value(slot_layout.variable_key(name), f"variable {name!r}"), named[name]
        assignments.append(
            assigning.Assignment(variable, assigning.grown(value, variable) if name in may_grow else value)
        )
    return assignments
