"""Invalidate `tf.function`s that contain a step when the constants in their traces change.

Options, hyperparameters that are numbers, and the kind of learning rate are constants of a trace. When one changes, the
functions that contain a step drop their traces, so that the next call traces them again. A concrete function cannot.
There a by-reference capture of no tensors, which TensorFlow evaluates whenever it calls a function, raises.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.function import trace_type
from tensorflow.python.eager.polymorphic_function import polymorphic_function, tracing_compilation, transform
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import control_flow_v2_func_graphs

from optim.errors import UnsupportedError
from optim.step import exports

CAPTURE = "optim"
"""Prefix of the keys of our captures."""


class Traces:
    """The versions of one optimizer.

    `prepare` runs before each call of a function that contains a step, and raises if the step is impossible now.
    """

    def __init__(self, prepare: Callable[[], None]):
        self._version = 0
        self._prepare = prepare
        self._functions: weakref.WeakSet[Any] = weakref.WeakSet()

    def changed(self) -> None:
        """Record that a constant of traces changed."""
        self._version += 1
        for function in self._functions:
            function._function_cache.clear()
        self._functions.clear()

    def watch(self) -> None:
        """While tracing: let the functions that are being traced run only as long as nothing changes.

        In the graph of a loop or of a branch the capture would count as a variable of it.
        """
        graph = tf.compat.v1.get_default_graph()
        while isinstance(graph, control_flow_v2_func_graphs.ControlFlowFuncGraph):
            graph = graph.outer_graph
        key = (CAPTURE, id(self))
        if not isinstance(graph, func_graph.FuncGraph) or key in graph.function_captures.by_ref_internal:
            return
        version = self._version
        self._functions.update(_being_traced())

        def evaluate() -> list[Any]:
            if version != self._version:
                raise UnsupportedError(
                    "the optimizer's options or hyperparameters were set after this function was traced, which contains"
                    " the old ones; call the tf.function that it comes from, or make it again"
                )
            if exports.is_written():
                exports.check(graph)
            if tf.executing_eagerly():
                self._prepare()
            else:  # an outer function is being traced, which needs the same
                self.watch()
            return []

        kind = trace_type.from_value((), trace_type.InternalTracingContext(True))
        evaluate.output_spec = kind  # type: ignore[attr-defined]
        graph.function_captures.add_or_replace(key=key, external=evaluate, internal=(), tracetype=kind, is_by_ref=True)


def _being_traced() -> Iterator[Any]:
    """Return the `tf.function`s whose Python code runs now, if they can drop traces. TensorFlow has no public way to
    find them."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == polymorphic_function.__name__:
            function = frame.f_locals.get("self")
            if isinstance(function, tf.types.experimental.PolymorphicFunction) and hasattr(function, "_function_cache"):
                yield function
        frame = frame.f_back


def _name_all_arguments(function: Any) -> None:
    """Let TensorFlow name all arguments of a function.

    TensorFlow counts each by-reference capture as one tensor, and leaves as many arguments without a name, which a
    SavedModel's signature needs. Ours have no tensor, so this names the arguments again without these captures.
    """
    captures = function.graph.function_captures.by_ref_internal
    ours = {key: captures.pop(key) for key in list(captures) if isinstance(key, tuple) and key[0] == CAPTURE}
    if ours:
        tracing_compilation._set_arg_keywords(function)
        captures.update(ours)


transform.CONCRETE_FUNCTION_CALLBACKS.append(_name_all_arguments)
