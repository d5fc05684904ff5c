"""What a step on a mesh writes, as one argument of a function and not as a handle for each slot.

Whenever a function is called, DTensor looks at each of its arguments: that takes longer than to update a small
variable. So the kernel's op is given the handles of the model's variables, which the model reads anyway, and the number
of a group by which it finds all else, on each device its own. TensorFlow orders what a function does by the handles
that its ops take; for which further ones a number stands, a resolver tells it, wherever the function has those, too.
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
from optim.layouts.boxes import region_of
from optim.layouts.placement import from_host

_numbers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""By identity: the numbers that some function has."""


def number_of(variable: Any, slots: Sequence[Any] = ()) -> Any:
    """While tracing: `numbers_of` groups of one variable and these slots of it, made on each device of its mesh."""
    layout = variable.layout
    with tf.init_scope():
        devices.wait_for_pending()  # a variable may yet be given its first value
        handles, slot_handles = devices.handles_of(variable), [devices.handles_of(slot) for slot in slots]
        groups, numbers = [], []
        for k, place in enumerate(layout.mesh.local_device_locations()):
            region = region_of(variable.shape.as_list(), layout, None, place) or (0, 0, 0)
            with tf.device(handles[k].device):
                empty = tf.constant([], tf.int64, [0])
                mine, at = [each[k] for each in slot_handles], tf.constant(region, tf.int64)
                group, number = devices.call("DtoptGroup", [handles[k]], mine, [], [], empty, empty, at, empty)
            groups.append(group)
            numbers.append(int(number.numpy()))
    return numbers_of(layout.mesh, numbers, [variable, *slots], (variable, groups))


def numbers_of(mesh: dtensor.Mesh, numbers: Sequence[int], variables: Sequence[Any], kept: Any) -> Any:
    """While tracing: a DTensor that tells each device of a mesh the number of its group.

    Args: `variables`: what the groups have. `kept`: what has to live as long as the numbers, which a function captures.
    """
    with tf.init_scope():
        parts = []
        for number, device in zip(numbers, mesh.local_devices(), strict=True):
            with tf.device(device):
                parts.append(tf.constant(number, tf.int64, [1] * len(mesh.dim_names)))
        packed = dtensor.pack(parts, dtensor.Layout(mesh.dim_names, mesh))
    packed.dtopt_kept = kept
    packed.dtopt_handles = [variable.handle for variable in variables]
    _numbers[id(packed)] = packed
    return packed


def summed(mesh: dtensor.Mesh, shape: Sequence[int], write: Callable[[Any], None]) -> Any:
    """While tracing on a mesh: the sum over its devices of float64 numbers that an op on each of them makes.

    What leaves an op on a mesh has to have a layout that DTensor knows. So each device writes its numbers into its part
    of a variable, by `write`, which is given the number of that.
    """
    with tf.init_scope():
        layout = dtensor.Layout([*mesh.dim_names, *[dtensor.UNSHARDED] * len(shape)], mesh)
        place = dtensor.DVariable(from_host(np.zeros([*mesh.shape(), *shape]), layout), trainable=False)
    write(number_of(place))
    return tf.reduce_sum(place.read_value(), axis=list(range(len(mesh.dim_names))))


@auto_control_deps.register_acd_resource_resolver
def _dtopt_group_resolver(op: Any, reads: Any, writes: Any) -> bool:
    """An op that is given numbers, the kernel's or a call of a function that has it, writes what they stand for."""
    if not isinstance(op.graph, func_graph.FuncGraph):
        return False
    inside = op.graph.function_captures.by_val_internal
    found = [numbers for key, numbers in _numbers.items() if key in inside]
    given = [numbers for numbers in found if any(each is inside[id(numbers)] for each in op.inputs)]
    handles = [inside[id(h)] for numbers in given for h in numbers.dtopt_handles if id(h) in inside]
    new = [handle for handle in handles if handle not in writes]
    writes.update(new)
    return bool(new)
