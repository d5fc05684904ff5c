"""Moving averages in place of the variables: for good, or for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.core.function import trace_type
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import control_flow_v2_func_graphs

from optim import slot_layout
from optim.errors import UnsupportedError
from optim.master_copies import target, write
from optim.placement import layout_of, relayout_bits
from optim.variables import SlotTable, Tracked

if TYPE_CHECKING:
    from optim.optimizer import Optimizer


def finalize(optimizer: Optimizer, var_list: Sequence[Any]) -> None:
    """What `Optimizer.finalize_variable_values` does."""
    if not optimizer._settings.ema.use_ema:
        return
    check_not_swapped(optimizer, "finalize_variable_values")
    _check_there_are_averages(optimizer, "finalize_variable_values")
    slots = optimizer._state.slots
    pairs = [(t, slots.get(slot_layout.AVERAGE, t)) for t in map(optimizer._tracked, var_list)]
    for tracked, average in pairs:
        write(slots, tracked, average.read_value())


def _check_there_are_averages(optimizer: Optimizer, before: str) -> None:
    if not optimizer.built or int(optimizer._state.counter(slot_layout.ITERATIONS).now()) == 0:
        raise UnsupportedError(f"no moving average was taken yet: take a step before {before}")


def swap(optimizer: Optimizer) -> None:
    """What `Optimizer.swap_averages` does.

    By DTensor's own ops, which queue up behind whatever is pending on the mesh; a later local step waits for them.
    """
    if not optimizer._settings.ema.use_ema:
        raise UnsupportedError("there are no moving averages to swap in; make the optimizer with use_ema=True")
    if not tf.executing_eagerly():
        raise UnsupportedError("averages are swapped eagerly; call swap_averages outside of tf.function")
    _check_there_are_averages(optimizer, "swap_averages")
    slots = optimizer._state.slots
    for tracked in optimizer._state.tracked:
        average = slots.find(slot_layout.AVERAGE, tracked)
        if average is not None:
            _exchange(slots, tracked, average)
    optimizer._has_averages_in = not optimizer._has_averages_in


def _exchange(slots: SlotTable, tracked: Tracked, average: tf.Variable) -> None:
    mean, own = average.read_value(), target(slots, tracked).read_value()
    write(slots, tracked, mean, relayout_bits)
    average.assign(relayout_bits(own, layout_of(average)))


@contextmanager
def swapped(optimizer: Optimizer) -> Iterator[None]:
    """What `Optimizer.averages_swapped` returns."""
    check_not_swapped(optimizer, "averages_swapped")
    swap(optimizer)
    try:
        yield
    finally:
        if optimizer._has_averages_in:  # the body may have swapped them out already
            swap(optimizer)


def check_not_swapped(optimizer: Optimizer, what: str) -> None:
    """Raises UnsupportedError while the averages are in the variables."""
    if optimizer._has_averages_in:
        raise UnsupportedError(
            f"{what}: the variables hold their moving averages now; leave the averages_swapped() block, or call"
            " swap_averages() again, first"
        )


def check_at_every_call(optimizer: Optimizer) -> None:
    """While tracing: make the function refuse to run, at each later call, while the averages are in the variables.

    TensorFlow evaluates a by-reference capture of a function whenever it is called: eagerly, and while an outer
    function is traced, which then needs the same check. In the graph of a loop it would count as a loop variable.
    """

    def check() -> list[Any]:
        if tf.executing_eagerly():
            check_not_swapped(optimizer, "apply_gradients")
        else:
            check_at_every_call(optimizer)
        return []

    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, control_flow_v2_func_graphs.ControlFlowFuncGraph):
        graph = graph.outer_graph
    key = ("optim.averages", id(optimizer))
    if isinstance(graph, func_graph.FuncGraph) and key not in graph.function_captures.by_ref_internal:
        spec = trace_type.from_value((), trace_type.InternalTracingContext(True))
        check.output_spec = spec  # type: ignore[attr-defined]
        graph.function_captures.add_or_replace(key=key, external=check, internal=(), tracetype=spec, is_by_ref=True)
