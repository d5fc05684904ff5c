"""All variables that a step on a mesh writes, as one argument of a function instead of a handle for each slot.

DTensor examines each argument of a function at every call, which takes longer than updating a small variable. So the
kernel's op gets the handles of the model's variables, which the model reads anyway, and the number of a group. With it
each device finds all other variables. TensorFlow orders the work of a function by the handles of its ops. A resolver
lists the further handles of a number, if the function has those, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor
from tensorflow.python.framework import auto_control_deps, func_graph

from optim import devices
from optim.layouts.placement import from_host
from optim.layouts.shard_slices import region_of

_numbers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""By identity: the numbers that some function has."""


def number_of(variable: Any, slots: Sequence[Any] = ()) -> Any:
    """While tracing: return `numbers_of` groups of one variable and these slots of it, made on each device of its
    mesh."""
    layout = variable.layout
    with tf.init_scope():
        devices.wait_for_pending()  # a variable may still get its first value
        handles, slot_handles = devices.handles_of(variable), [devices.handles_of(slot) for slot in slots]
        groups, numbers = [], []
        for k, place in enumerate(layout.mesh.local_device_locations()):
            region = region_of(variable.shape.as_list(), layout, None, place) or (0, 0, 0)
            with tf.device(handles[k].device):
                empty = tf.constant([], tf.int64, [0])
                mine, at = [slot_row[k] for slot_row in slot_handles], tf.constant(region, tf.int64)
                group, number = devices.call("DtoptGroup", [handles[k]], mine, [], [], empty, empty, at, empty)
            groups.append(group)
            numbers.append(int(number.numpy()))
    return numbers_of(layout.mesh, numbers, [variable, *slots], (variable, groups))


def numbers_of(mesh: dtensor.Mesh, numbers: Sequence[int], variables: Sequence[Any], references: Any) -> Any:
    """While tracing: return a DTensor that gives each device of a mesh the number of its group.

    Args:
      variables: the contents of the groups.
      references: objects that must live as long as the numbers, which a function captures.
    """
    with tf.init_scope():
        parts = []
        for number, device in zip(numbers, mesh.local_devices(), strict=True):
            with tf.device(device):
                parts.append(tf.constant(number, tf.int64, [1] * len(mesh.dim_names)))
        packed = dtensor.pack(parts, dtensor.Layout(mesh.dim_names, mesh))
    packed.dtopt_kept = references
    packed.dtopt_handles = [variable.handle for variable in variables]
    _numbers[id(packed)] = packed
    return packed


def summed(mesh: dtensor.Mesh, shape: Sequence[int], write: Callable[[Any], None]) -> Any:
    """While tracing on a mesh: return the sum over its devices of float64 numbers that an op on each of them computes.

    Results of an op on a mesh need a layout that DTensor knows. So each device writes its numbers into its part of a
    variable, by `write`, which gets the number of the variable's group.
    """
    with tf.init_scope():
        layout = dtensor.Layout([*mesh.dim_names, *[dtensor.UNSHARDED] * len(shape)], mesh)
        place = dtensor.DVariable(from_host(np.zeros([*mesh.shape(), *shape]), layout), trainable=False)
    write(number_of(place))
    return tf.reduce_sum(place.read_value(), axis=list(range(len(mesh.dim_names))))


@auto_control_deps.register_acd_resource_resolver
def _dtopt_group_resolver(op: Any, reads: Any, writes: Any) -> bool:
    """Add the variables of the numbers to the writes of an op, the kernel's or a call of a function that has it."""
    if not isinstance(op.graph, func_graph.FuncGraph):
        return False
    inside = op.graph.function_captures.by_val_internal
    known = [numbers for key, numbers in _numbers.items() if key in inside]
    with_inputs = [numbers for numbers in known if any(numbers_ is inside[id(numbers)] for numbers_ in op.inputs)]
    handles = [inside[id(h)] for numbers in with_inputs for h in numbers.dtopt_handles if id(h) in inside]
    new = [handle for handle in handles if handle not in writes]
    writes.update(new)
    return bool(new)
