"""A state of variables of TensorFlow, written by TensorFlow: on meshes, and by several clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim.checkpoints import clients, folders
from optim.checkpoints.live import LiveState
from optim.checkpoints.variables import identity
from optim.layouts import placement
from optim.slot_layout import SLICED, Metadata
from optim.state.tracked import unwrap


def write(folder: str, metadata: Metadata, state: LiveState, named: Mapping[str, Any]) -> str:
    """Write variables and state. With several clients all must call this; the first writes whole values."""
    state_variables = [*state.scalars.values(), *(v for of in state.slots.values() for v in of.values())]
    everything = [*state_variables, *map(unwrap, named.values())]
    if dtensor.num_clients() == 1:
        stored = _whole if _are_on_several_meshes(everything) else _readable
        return _write(folder, metadata, _tree(state, named, stored))
    copies = _copies_on_first_client(everything)
    tree = lambda: _tree(state, named, lambda variable: copies[id(variable)])  # noqa: E731
    return clients.first_does(lambda: _write(folder, metadata, tree()))


class _Document(tf.train.experimental.PythonState):
    """A string in a checkpoint."""

    def __init__(self, text: str):
        super().__init__()
        self._text = text

    def serialize(self) -> str:
        return self._text

    def deserialize(self, string_value: str) -> None:
        self._text = string_value


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
    nodes = {name: _node(children) for name, children in tree.items()}
    checkpoint = tf.train.Checkpoint(metadata=_Document(metadata.to_json()), **nodes)
    checkpoint.save_counter.assign(1)  # a restored tf.train.Checkpoint expects one
    return folders.replace_state(folder, checkpoint.write)


def _tree(
    state: LiveState, named: Mapping[str, Any], stored: Callable[[tf.Variable], tf.Variable]
) -> dict[str, dict[str, Any]]:
    """Children of the nodes `optimizer` and `variables`, slots under the names given here.

    `stored` gives the variable whose value is written for one.
    """
    names = {identity(variable): name for name, variable in named.items()}
    owners = [names[id(tracked.variable)] for tracked in state.tracked]
    slots = {slot: {owners[i]: stored(variable) for i, variable in of.items()} for slot, of in state.slots.items()}
    children: dict[str, Any] = {name: stored(variable) for name, variable in state.scalars.items()}
    children["slots"] = _node({slot: _node(of) for slot, of in slots.items()})
    return {"optimizer": children, "variables": {name: stored(unwrap(v)) for name, v in named.items()}}


def _node(children: Mapping[str, Any]) -> tf.Module:
    node = tf.Module(name="node")
    for name, child in children.items():
        node._track_trackable(child, name)
    return node
