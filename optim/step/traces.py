"""`tf.function`s that hold a step do not outlive what they hold as constants.

Options, hyperparameters that are numbers, and what kind of learning rate there is, are constants of a trace. A
by-reference capture of no tensors, which TensorFlow evaluates whenever it calls a function, is put into each graph with
a step; it raises where the optimizer has changed since.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.core.function import trace_type
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import control_flow_v2_func_graphs

from optim.errors import UnsupportedError


class Traces:
    """The versions of one optimizer; `check` raises where a step cannot be taken now."""

    def __init__(self, check: Callable[[], None]):
        self._version = 0
        self._check = check

    def changed(self) -> None:
        """Something changed that traces hold as a constant."""
        self._version += 1

    def watch(self) -> None:
        """While tracing: let the function that is being traced run only as long as nothing changed.

        In the graph of a loop or of a branch the capture would count as a variable of it.
        """
        graph = tf.compat.v1.get_default_graph()
        while isinstance(graph, control_flow_v2_func_graphs.ControlFlowFuncGraph):
            graph = graph.outer_graph
        key = ("optim", id(self))
        if not isinstance(graph, func_graph.FuncGraph) or key in graph.function_captures.by_ref_internal:
            return
        version = self._version

        def evaluate() -> list[Any]:
            if version != self._version:
                raise UnsupportedError(
                    "the optimizer's options or hyperparameters were set after this tf.function was traced, which holds"
                    " the old ones; make the function anew (a Keras model: compile it again)"
                )
            if tf.executing_eagerly():
                self._check()
            else:  # an outer function is being traced, which needs the same
                self.watch()
            return []

        kind = trace_type.from_value((), trace_type.InternalTracingContext(True))
        evaluate.output_spec = kind  # type: ignore[attr-defined]
        graph.function_captures.add_or_replace(key=key, external=evaluate, internal=(), tracetype=kind, is_by_ref=True)
