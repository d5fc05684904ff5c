"""Save and load optimizers in the slot-variable layout, docs/formats/slot-variables.md."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim import averaging, placement, slot_layout
from optim import master_copies as masters
from optim.errors import CheckpointError
from optim.loss_scaling import DYNAMIC
from optim.optimizer import Optimizer
from optim.slot_layout import Metadata, VariableEntry
from optim.state import State
from optim.variables import Tracked, plain_name, unwrap

Variables = Mapping[str, Any] | Sequence[Any]


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


class _Document(tf.train.experimental.PythonState):
    """A string in a checkpoint."""

    def __init__(self, text: str):
        super().__init__()
        self._text = text

    def serialize(self) -> str:
        return self._text

    def deserialize(self, string_value: str) -> None:
        self._text = string_value


# Saving.


def save_checkpoint(path: str | os.PathLike[str], optimizer: Optimizer, variables: Variables) -> str:
    """Write an optimizer and the model's variables; an earlier checkpoint at `path` stays whole until this one is.

    Args:
      path: a folder, made if it is not there.
      optimizer: its state is saved for every variable that it was built on.
      variables: the model's variables, trainable or not: a mapping name -> variable, or a sequence named by
        `variable.name`. Those that the optimizer was built on must be among them.

    Returns:
      The prefix that `tf.train.Checkpoint(optimizer=...).restore` takes.

    Raises:
      CheckpointError: names that are not unique, missing variables, or a `path` that holds something else.
      UnsupportedError: `swap_averages` put the averages into the variables.
    """
    averaging.check_not_swapped(optimizer, "save_checkpoint")
    folder = os.fspath(path)
    named = _by_name(variables)
    metadata = _describe(optimizer, named)
    _check_folder(folder)
    os.makedirs(folder, exist_ok=True)
    state = f"{slot_layout.STATE_PREFIX}{secrets.token_hex(4)}"
    prefix = os.path.join(folder, state)
    tree = {name: _node(children) for name, children in _tree(optimizer, named).items()}
    checkpoint = tf.train.Checkpoint(metadata=_Document(metadata.to_json()), **tree)
    checkpoint.save_counter.assign(1)  # a restored tf.train.Checkpoint expects one
    checkpoint.write(prefix)
    _publish(folder, state)
    return prefix


def _check_folder(folder: str) -> None:
    if os.path.isfile(folder):
        raise CheckpointError(f"{folder} is a file; a checkpoint is a folder, give another path")
    if os.path.isdir(folder):
        foreign = [f for f in sorted(os.listdir(folder)) if not _is_ours(f)]
        if foreign:
            raise CheckpointError(f"{folder} holds other files ({', '.join(foreign[:3])}); give a folder of its own")


def _is_ours(file: str) -> bool:
    return file == slot_layout.POINTER_NAME or file.startswith((slot_layout.STATE_PREFIX, ".checkpoint-"))


def _publish(folder: str, state: str) -> None:
    """Make `state` the current one, then remove what an earlier or interrupted save left."""
    for name in os.listdir(folder):
        if name.startswith(state):
            _sync(os.path.join(folder, name))
    pointer = os.path.join(folder, f".checkpoint-{state}")
    with open(pointer, "w", encoding="utf-8") as file:
        file.write(slot_layout.pointer_text(state))
        file.flush()
        os.fsync(file.fileno())
    os.replace(pointer, os.path.join(folder, slot_layout.POINTER_NAME))
    _sync(folder)
    for name in os.listdir(folder):
        if _is_ours(name) and name != slot_layout.POINTER_NAME and not name.startswith(f"{state}."):
            _remove(os.path.join(folder, name))


def _remove(path: str) -> None:
    if os.path.isdir(path):  # a save that was killed leaves TensorFlow's state-..._temp
        shutil.rmtree(path)
    else:
        os.remove(path)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _by_name(variables: Variables) -> dict[str, Any]:
    if isinstance(variables, Mapping):
        return {str(name): variable for name, variable in variables.items()}
    named: dict[str, Any] = {}
    for variable in variables:
        name = plain_name(variable)
        if name in named:
            raise CheckpointError(f"two variables are called {name!r}; pass a mapping of unique names to variables")
        named[name] = variable
    return named


def _names_by_id(named: Mapping[str, Any]) -> dict[int, str]:
    return {id(unwrap(variable)): name for name, variable in named.items()}


def _describe(optimizer: Optimizer, named: Mapping[str, Any]) -> Metadata:
    names = _names_by_id(named)
    tracked = list(optimizer._state.tracked)
    missing = [t.name for t in tracked if id(t.variable) not in names]
    if missing:
        raise CheckpointError(f"the optimizer was built on variables that are not among those given: {missing}")
    order = [names[id(t.variable)] for t in tracked]
    order += [name for name in named if name not in set(order)]
    entries = []
    for name in order:
        variable = unwrap(named[name])
        shape = tuple(variable.shape.as_list())
        entries.append(VariableEntry(name, shape, variable.dtype.name, bool(variable.trainable)))
    slots: dict[str, list[str]] = {}
    for slot, index, _ in optimizer._state.slots.items():
        slots.setdefault(slot, []).append(names[id(tracked[index].variable)])
    return Metadata(
        class_name=type(optimizer).__name__,
        config=optimizer.get_config(),
        variables=tuple(entries),
        slots={slot: tuple(owners) for slot, owners in slots.items()},
        provenance={"written_by": f"dtopt {_version()}", "tensorflow": tf.__version__},
    )


def _version() -> str:
    try:
        return version("dtopt")
    except PackageNotFoundError:  # used from a source tree that is not installed
        return "unknown"


def _tree(optimizer: Optimizer, named: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Children of the nodes `optimizer` and `variables`, slots under the names given here."""
    state: State = optimizer._state
    names = _names_by_id(named)
    slots: dict[str, dict[str, Any]] = {}
    for slot, index, variable in state.slots.items():
        slots.setdefault(slot, {})[names[id(state.tracked.at(index).variable)]] = variable
    children: dict[str, Any] = dict(state.scalars)
    children["slots"] = _node({slot: _node(owners) for slot, owners in slots.items()})
    return {"optimizer": children, "variables": {name: unwrap(v) for name, v in named.items()}}


def _node(children: Mapping[str, Any]) -> tf.Module:
    node = tf.Module(name="node")
    for name, child in children.items():
        node._track_trackable(child, name)
    return node


# Reading.


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
    master_copies: bool | None = None,
    loss_scale: float | str | None = None,
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
      master_copies: True gives float16 and bfloat16 variables float32 copies though the saved optimizer had none; the
        slots are widened, and the copies start as the variables. With copies in the checkpoint, it is these from which
        training goes on, also with `restore_variables=False`.
      loss_scale: another `loss_scale` than the saved one; a dynamic scale that was not saved starts anew.
      custom_objects: classes by name, where the saved optimizer is a subclass of your own.

    Returns:
      An optimizer built on the variables; its next step is the one that the saved optimizer would have taken.

    Raises:
      CheckpointError: no such checkpoint, a damaged one, an unknown class, or variables that are missing, extra, or of
        another shape or dtype, all of them listed. Then nothing was assigned.
    """
    folder = os.fspath(path)
    reader, metadata = _open(folder)
    named = _by_name(variables)
    trained = _check_variables(folder, metadata, named, restore_variables)
    wanted: dict[str, Any] = {
        "slot_placement": slot_placement,
        "master_copies": master_copies,
        "loss_scale": loss_scale,
    }
    changes: dict[str, Any] = {option: value for option, value in wanted.items() if value is not None}
    if loss_scale not in (None, DYNAMIC):
        changes["loss_scale_growth_steps"] = None  # which only a dynamic scale has
    optimizer = _make(folder, metadata, mesh, changes, custom_objects or {})
    given = [named[name] for name in trained]
    optimizer._state.track(given, trained)
    optimizer.build(given)
    _restore_slots(folder, reader, metadata, optimizer)
    _restore_scalars(folder, reader, metadata, optimizer)
    if restore_variables:
        _restore_variables(folder, reader, metadata, named)
    stored = metadata.slots.get(slot_layout.MASTER, ())
    masters.refresh(optimizer, [named[name] for name in trained if name not in stored])
    return optimizer


def _restore_variables(folder: str, reader: Any, metadata: Metadata, named: Mapping[str, Any]) -> None:
    """Read everything once before the first is assigned: damage anywhere leaves the caller's variables alone."""
    keys = {entry.name: slot_layout.variable_key(entry.name) for entry in metadata.variables}
    for key in keys.values():
        _tensor(reader, key, folder)
    for name, key in keys.items():
        variable = unwrap(named[name])
        variable.assign(placement.from_host(_tensor(reader, key, folder), placement.layout_of(variable)))


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
    changes: Mapping[str, Any],
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
    return cls.from_config({**metadata.config, "mesh": mesh, **changes})


def _restore_slots(folder: str, reader: Any, metadata: Metadata, optimizer: Optimizer) -> None:
    state = optimizer._state
    by_name = {t.name: t for t in state.tracked}
    for slot, owners in metadata.slots.items():
        for name in owners:
            variable = state.slots.find(slot, by_name[name])
            if variable is None:
                raise CheckpointError(
                    f"{folder} holds slot {slot!r}, which {type(optimizer).__name__} with its config has not"
                )
            value = _tensor(reader, slot_layout.slot_key(slot, name), folder)
            if variable.dtype == tf.float32 and tf.as_dtype(value.dtype) in masters.LOW_PRECISION:
                value = value.astype(np.float32)  # saved without master copies
            if tuple(value.shape) != tuple(variable.shape) or tf.as_dtype(value.dtype) != variable.dtype:
                raise CheckpointError(
                    f"{folder}: slot {slot!r} of {name!r} is {value.dtype} {tuple(value.shape)}, expected"
                    f" {variable.dtype.name} {tuple(variable.shape)}"
                )
            variable.assign(placement.from_host(value, placement.layout_of(variable)))
    _check_no_slot_is_missing(folder, metadata, optimizer)


def _check_no_slot_is_missing(folder: str, metadata: Metadata, optimizer: Optimizer) -> None:
    """A variable has all of its slots in the file or, never trained, none."""
    state = optimizer._state
    for tracked in state.tracked:
        here = [s for s in state.slots.names if state.slots.find(s, tracked) is not None and s != slot_layout.MASTER]
        stored = [s for s in here if tracked.name in metadata.slots.get(s, ())]
        if stored and stored != here:
            missing = [s for s in here if s not in stored]
            raise CheckpointError(f"{folder} holds slots {stored} of {tracked}, but not {missing}")


def _restore_scalars(folder: str, reader: Any, metadata: Metadata, optimizer: Optimizer) -> None:
    shapes = reader.get_variable_to_shape_map()
    starts_anew = metadata.config.get("loss_scale") != DYNAMIC
    for name, variable in optimizer._state.scalars.items():
        key = slot_layout.scalar_key(name)
        if starts_anew and name in (slot_layout.LOSS_SCALE, slot_layout.FINITE_STEPS):
            continue
        if key not in shapes:
            raise CheckpointError(f"{folder} holds no {name!r} of the optimizer")
        value = np.asarray(_tensor(reader, key, folder)).astype(variable.dtype.as_numpy_dtype)
        variable.assign(placement.from_host(value, placement.layout_of(variable)))
    steps = optimizer._state.scalars.get(slot_layout.ACCUMULATED_STEPS)
    if steps is not None and int(optimizer._state.counter(slot_layout.ACCUMULATED_STEPS).now()) > 0:
        optimizer._gathering.update(t.index for t in optimizer._state.tracked if _has_gathered(optimizer, t))


def _has_gathered(optimizer: Optimizer, tracked: Tracked) -> bool:
    total = optimizer._state.slots.find(slot_layout.ACCUMULATED_GRADIENT, tracked)
    return total is not None and bool(np.any(placement.to_host(total)))
