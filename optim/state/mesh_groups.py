"""What a step on a mesh writes, as one argument of a function and not as a handle for each slot.

Whenever a function is called, DTensor looks at each of its arguments: that takes longer than to update a small
variable. So the kernel's op is given the handles of the model's variables, which the model reads anyway, and the number
of a group by which it finds all else, on each device its own. TensorFlow orders what a function does by the handles
that its ops take; for which further ones a number stands, a resolver tells it, wherever the function has those, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor
from tensorflow.python.framework import auto_control_deps, func_graph

from optim import devices

_numbers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""By identity: the numbers that some function has."""


def number_of(lists: Sequence[Sequence[Any]], others: Sequence[int]) -> Any:
    """While tracing: a DTensor with the number of a group of variables, made on each device of their mesh.

    Args:
      lists: what is updated, slots, averages and roundings, as `DtoptGroup` takes them.
      others: what happens to rows without a gradient, for each variable, or nothing.
    """
    mesh = lists[0][0].layout.mesh
    with tf.init_scope():
        devices.wait_for_pending()  # a variable may yet be given its first value
        handles = [[devices.handles_of(variable) for variable in given] for given in lists]
        groups, parts = [], []
        for k, device in enumerate(mesh.local_devices()):
            with tf.device(device):
                empty = tf.constant([], tf.int64, [0])
                rest = tf.constant(others, tf.int64, [len(others)])
                mine = ([h[k] for h in given] for given in handles)
                group, number = devices.call("DtoptGroup", *mine, empty, empty, empty, rest)
                groups.append(group)
                parts.append(tf.reshape(number, [1] * len(mesh.dim_names)))
        numbers = dtensor.pack(parts, dtensor.Layout(mesh.dim_names, mesh))
    numbers.dtopt_groups = groups  # they live as long as their numbers, which a function captures
    numbers.dtopt_handles = [variable.handle for given in lists for variable in given]
    _numbers[id(numbers)] = numbers
    return numbers


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
