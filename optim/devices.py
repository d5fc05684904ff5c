"""Local devices: handles and ops on them, waiting, and one thread for each device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.ops import control_flow_util
from tensorflow.python.saved_model import save_context
from tensorflow.python.util import dispatch

from optim.layouts.placement import layout_of

Call = tuple[Any, ...]
"""The name of an op and its arguments."""


def call(op: str, *arguments: Any) -> Any:
    """Run one eager op through TensorFlow's fast path, about half the cost of `tf.raw_ops` per call."""
    return pywrap_tfe.TFE_Py_FastPathExecute(context.context(), op, None, *arguments)


def vector(numbers: Sequence[float], dtype: tf.DType) -> tf.Tensor:
    """Return `tf.constant` of numbers on the first CPU device, in a quarter of its time."""
    return EagerTensor(numbers, None, dtype.as_datatype_enum)


def call_all(calls: Sequence[Call]) -> None:
    """Run ops one after the other with almost no Python between them.

    Threads of other devices wait for Python's lock after each of theirs, and putting a thread to sleep for that takes
    longer than a small op.
    """
    fast, now = pywrap_tfe.TFE_Py_FastPathExecute, context.context()
    for op, *arguments in calls:
        fast(now, op, None, *arguments)


def read(handle: Any, dtype: tf.DType) -> Any:
    return call("ReadVariableOp", handle, "dtype", dtype.as_datatype_enum)


def assign(handle: Any, value: Any) -> None:
    call("AssignVariableOp", handle, value, "dtype", value.dtype.as_datatype_enum, "validate_shape", False)


def on_host() -> AbstractContextManager[Any]:
    """Put ops and variables on this process's first CPU device."""
    device: AbstractContextManager[Any] = tf.device("CPU:0")
    return device


def is_for_xla() -> bool:
    """Whether the traced graph is for XLA, which accepts variables of only one device."""
    graph = None if tf.executing_eagerly() else ops.get_default_graph()
    return graph is not None and bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def needs_ops() -> bool:
    """Whether the traced graph is for XLA, or for programs that may lack the kernel."""
    return not tf.executing_eagerly() and (is_for_xla() or save_context.in_save_context())


def handles_of(variable: tf.Variable) -> list[Any]:
    """Return one resource handle per local device; eager only."""
    if isinstance(variable, tf.distribute.DistributedValues):
        return [copy.handle for copy in variable.values]
    if layout_of(variable) is None:
        return [variable.handle]
    return dtensor.unpack(variable.handle)


def wait_for_pending() -> None:
    """Wait until DTensor has finished all requested work on every device of every mesh.

    Each of DTensor's device threads has an executor, a queue that it processes in order, and the context lists them
    all. An error of pending work is raised here. On a GPU, "finished" means launched; the local steps that follow are
    launched after it.
    """
    context.context().sync_executors()


@cache
def _pool() -> ThreadPoolExecutor:
    _make_dispatch_safe()
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix="optim-device")


def _make_dispatch_safe() -> None:
    """Allow several threads to call TensorFlow's Python functions.

    Their type-based dispatch keeps the arguments of a call in the function's dispatcher while it checks their types
    (`python_api_dispatcher.cc`). A type that is new to a checker is checked in Python. Meanwhile another thread may
    call the same function and replace those arguments: the first thread then reads freed objects. Known types are
    looked up without leaving C++. So this function shows every checker all types that device threads pass.
    """
    one = tf.constant(1.0)
    shown = (one, 1.0, 1, True, None, "", [one], (1,), tf.float32, tf.Variable(one, trainable=False), np.ones(1))
    for checker in tuple(dispatch._is_instance_checker_cache.values()):
        for value in shown:
            checker.Check(value)


def on_every_device(devices: Sequence[str], task: Callable[[str], Any]) -> list[Any]:
    """Run `task(device)` for all devices in parallel, the first in this thread; raise the first error after all
    ended."""

    def placed(device: str) -> Any:
        with tf.device(device):
            return task(device)

    if not devices:
        return []
    others = [_pool().submit(placed, device) for device in devices[1:]]
    results: list[Any] = []
    failure: BaseException | None = None
    try:
        results.append(placed(devices[0]))
    except BaseException as error:  # the other devices' threads must end before anything is raised
        failure = error
    for other in others:
        failure = failure or other.exception()
        if failure is None:
            results.append(other.result())
    if failure is not None:
        raise failure
    return results
