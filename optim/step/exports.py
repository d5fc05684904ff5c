"""A `tf.function` that contains a step and is written into a SavedModel.

TensorFlow loads a SavedModel only if it knows all of its ops. Every `tf.function` is traced while it is written, and
such traces contain no op of dtopt's kernel. If a concrete function contains one, the user gets a warning.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor
from tensorflow.python.saved_model import save_context

from optim.errors import UnsupportedError

KERNEL = "DtoptStep"
WITHOUT = 'save the tf.function that it comes from, which is then traced again, or use executor="portable"'

_reported: weakref.WeakSet[Any] = weakref.WeakSet()


def is_written() -> bool:
    """Whether a SavedModel is being written."""
    return bool(save_context.in_save_context())


def check(graph: tf.Graph) -> None:
    """Warn about problems of loading a function with this graph.

    Raises:
      UnsupportedError: on a mesh, TensorFlow cannot write the inputs of the kernel's op.
    """
    if graph in _reported or not _has_kernel(graph):
        return
    with tf.init_scope():  # out of a signature that is being traced
        on_mesh = any(isinstance(value, tf.Tensor) and dtensor.is_dtensor(value) for value, _ in graph.captures)
    if on_mesh:
        raise UnsupportedError(
            f"concrete function {graph.name} holds a step on a mesh by dtopt's kernel, which no SavedModel can hold;"
            f" {WITHOUT}."
            " TensorFlow cannot run steps on a mesh from a SavedModel: to train on, tf.train.Checkpoint or"
            " optim.save_checkpoint keep the state"
        )
    _reported.add(graph)
    warnings.warn(
        f"concrete function {graph.name} holds a step by dtopt's kernel: a program that loads this SavedModel has to"
        f" call optim.build_kernels() first. To do without, {WITHOUT}",
        UserWarning,
        stacklevel=2,
    )


def _has_kernel(graph: tf.Graph) -> bool:
    inside = graph.as_graph_def()
    parts = [inside.node, *(function.node_def for function in inside.library.function)]
    return any(node.op.startswith(KERNEL) for part in parts for node in part)
