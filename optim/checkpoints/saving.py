"""Save optimizers in the slot-variable layout, docs/formats/slot-variables.md; `checkpoint_reading` loads them."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim import release, slot_layout
from optim.checkpoints import clients
from optim.errors import CheckpointError, UnsupportedError
from optim.layouts import placement
from optim.optimizer import Optimizer
from optim.slot_layout import Metadata, VariableEntry
from optim.state.state import State
from optim.state.tracked import plain_name, unwrap

Variables = Mapping[str, Any] | Sequence[Any]
SLICED = frozenset({"bool", "int8", "uint8", "int16", "int32", "int64", "bfloat16", "float32", "float64"})
SLICED |= {"complex64", "complex128"}
"""Dtypes of which TensorFlow reads tensors in slices (2.21, tensorflow/core/util/tensor_bundle, GetSliceValue)."""


class _Document(tf.train.experimental.PythonState):
    """A string in a checkpoint."""

    def __init__(self, text: str):
        super().__init__()
        self._text = text

    def serialize(self) -> str:
        return self._text

    def deserialize(self, string_value: str) -> None:
        self._text = string_value


def save_checkpoint(path: str | os.PathLike[str], optimizer: Any, variables: Variables) -> str:
    """Write an optimizer and the model's variables; an earlier checkpoint at `path` stays whole until this one is.

    With several clients all must call this. The first gathers whole values in its memory and writes; `path` must be on
    a disk that all of them see.

    Args:
      path: a folder, made if it is not there.
      optimizer: of `optim`, or what `for_keras` made of it; its state is saved for every variable that it was built
        on.
      variables: the model's variables, trainable or not: a mapping name -> variable, or a sequence named by
        `variable.name`. Those that the optimizer was built on must be among them.

    Returns:
      The prefix that `tf.train.Checkpoint(optimizer=...).restore` takes.

    Raises:
      CheckpointError: names that are not unique, missing variables, or a `path` that holds something else.
      UnsupportedError: `swap_averages` put the averages into the variables; or another kind of optimizer.
    """
    optimizer = _unwrapped(optimizer)
    optimizer._settings.averages.check_not_swapped("save_checkpoint")
    folder = os.fspath(path)
    named = named_variables(variables)
    metadata = _describe(optimizer, named)
    everything = [*optimizer._state.all_variables(), *map(unwrap, named.values())]
    if dtensor.num_clients() == 1:
        stored = _whole if _are_on_several_meshes(everything) else _readable
        return _write(folder, metadata, _tree(optimizer, named, stored))
    copies = _copies_on_first_client(everything)
    tree = lambda: _tree(optimizer, named, lambda variable: copies[id(variable)])  # noqa: E731
    return clients.first_does(lambda: _write(folder, metadata, tree()))


def _unwrapped(optimizer: Any) -> Optimizer:
    """The optimizer in what `for_keras` made of it."""
    if getattr(optimizer, "has_slots_of_keras", False):
        raise UnsupportedError(
            "save_checkpoint writes variables of TensorFlow. With Keras on JAX or PyTorch, save the model:\n"
            'model.save("model.keras")'
        )
    inner = getattr(optimizer, "inner", optimizer)
    if isinstance(inner, Optimizer):
        return inner
    name = f"{type(inner).__module__}.{type(inner).__name__}"
    if isinstance(getattr(getattr(inner, "inner_optimizer", None), "inner", None), Optimizer):
        raise UnsupportedError(
            f"{name} keeps a loss scale of its own, which a checkpoint of optim does not hold; give save_checkpoint its"
            ' `inner_optimizer`, or let the optimizer scale losses itself: loss_scale="dynamic"'
        )
    raise UnsupportedError(
        f"save_checkpoint takes an optimizer of optim, or what optim.for_keras made of one, not {name}; `dtopt migrate"
        " checkpoint` brings over what Keras saved, and tf.train.Checkpoint saves those of optim.legacy"
    )


def _readable(variable: tf.Variable) -> tf.Variable:
    """The variable, or its whole value where TensorFlow could write its shards but not read them again."""
    layout = placement.layout_of(variable)
    if variable.dtype.name in SLICED or layout is None or layout.is_fully_replicated():
        return variable
    return _whole(variable)


def _whole(variable: tf.Variable) -> tf.Variable:
    return tf.Variable(placement.to_host(variable), trainable=False)


def _are_on_several_meshes(variables: Sequence[tf.Variable]) -> bool:
    """Whether TensorFlow, which writes variables of one mesh at a time, could not write these."""
    return len({layout.mesh for layout in map(placement.layout_of, variables) if layout is not None}) > 1


def _copies_on_first_client(variables: Sequence[tf.Variable]) -> dict[int, tf.Variable]:
    """Whole values by `id`, on the first client; all must call this, because gathering takes every device."""
    copies = {}
    for variable in variables:
        value = placement.to_host(variable)
        if dtensor.client_id() == 0:
            copies[id(variable)] = tf.Variable(value, trainable=False)
    return copies


def _write(folder: str, metadata: Metadata, tree: Mapping[str, Mapping[str, Any]]) -> str:
    """Write a checkpoint beside the current one, then make it the current one."""
    _check_folder(folder)
    os.makedirs(folder, exist_ok=True)
    state = f"{slot_layout.STATE_PREFIX}{secrets.token_hex(4)}"
    prefix = os.path.join(folder, state)
    nodes = {name: _node(children) for name, children in tree.items()}
    checkpoint = tf.train.Checkpoint(metadata=_Document(metadata.to_json()), **nodes)
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


def named_variables(variables: Variables) -> dict[str, Any]:
    """The variables by name. Raises CheckpointError if two have the same."""
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
        provenance={"written_by": f"dtopt {release.version()}", "tensorflow": tf.__version__},
    )


def _tree(
    optimizer: Optimizer, named: Mapping[str, Any], stored: Callable[[tf.Variable], tf.Variable]
) -> dict[str, dict[str, Any]]:
    """Children of the nodes `optimizer` and `variables`, slots under the names given here.

    `stored` gives the variable whose value is written for one.
    """
    state: State = optimizer._state
    names = _names_by_id(named)
    slots: dict[str, dict[str, Any]] = {}
    for slot, index, variable in state.slots.items():
        slots.setdefault(slot, {})[names[id(state.tracked.at(index).variable)]] = stored(variable)
    children: dict[str, Any] = {name: stored(variable) for name, variable in state.scalars.items()}
    children["slots"] = _node({slot: _node(owners) for slot, owners in slots.items()})
    return {"optimizer": children, "variables": {name: stored(unwrap(v)) for name, v in named.items()}}


def _node(children: Mapping[str, Any]) -> tf.Module:
    node = tf.Module(name="node")
    for name, child in children.items():
        node._track_trackable(child, name)
    return node
