"""`tf.function`s that hold a step do not outlive what they hold as constants.

Options, hyperparameters that are numbers, and what kind of learning rate there is, are constants of a trace. When one
changes, the functions that hold a step forget their traces, so that the next call traces them anew. A concrete function
cannot: there a by-reference capture of no tensors, which TensorFlow evaluates whenever it calls a function, raises.
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
"""What the keys of our captures begin with."""


class Traces:
    """The versions of one optimizer; `prepare` comes before each call of a function that holds a step, and raises where
    that cannot be taken now."""

    def __init__(self, prepare: Callable[[], None]):
        self._version = 0
        self._prepare = prepare
        self._functions: weakref.WeakSet[Any] = weakref.WeakSet()

    def changed(self) -> None:
        """Something changed that traces hold as a constant."""
        self._version += 1
        for function in self._functions:
            function._function_cache.clear()
        self._functions.clear()

    def watch(self) -> None:
        """While tracing: let the functions that are being traced run only as long as nothing changed.

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
                    "the optimizer's options or hyperparameters were set after this function was traced, which holds"
                    " the old ones; call the tf.function that it comes from, or make it anew"
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
    """The `tf.function`s whose Python code runs now, as far as they can drop traces. TensorFlow tells that nobody."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == polymorphic_function.__name__:
            function = frame.f_locals.get("self")
            if isinstance(function, tf.types.experimental.PolymorphicFunction) and hasattr(function, "_function_cache"):
                yield function
        frame = frame.f_back


def _name_all_arguments(function: Any) -> None:
    """TensorFlow takes each by-reference capture for one tensor, and so leaves as many arguments of a function without
    a name, which a SavedModel's signature needs. Ours have no tensor: let it name them anew without these."""
    captures = function.graph.function_captures.by_ref_internal
    ours = {key: captures.pop(key) for key in list(captures) if isinstance(key, tuple) and key[0] == CAPTURE}
    if ours:
        tracing_compilation._set_arg_keywords(function)
        captures.update(ours)


transform.CONCRETE_FUNCTION_CALLBACKS.append(_name_all_arguments)
