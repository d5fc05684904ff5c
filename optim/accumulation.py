"""Gradients gathered over several calls, of which the mean makes a step: `gradient_accumulation_steps`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from optim import master_copies, placement, slot_layout
from optim.executors.devices import wait_for_pending
from optim.executors.work import compute_dtype
from optim.variables import Tracked

if TYPE_CHECKING:
    from optim.optimizer import Optimizer


def gather(optimizer: Optimizer, tracked: Sequence[Tracked], gradients: Sequence[Any]) -> None:
    """Add gradients to their accumulators."""
    for item, gradient in zip(tracked, gradients, strict=True):
        total = optimizer._state.slots.get(slot_layout.ACCUMULATED_GRADIENT, item)
        total.assign_add(placement.relayout(tf.cast(gradient, total.dtype), placement.layout_of(total)))
        optimizer._gathering.add(item.index)


def gather_eagerly(optimizer: Optimizer, tracked: Sequence[Tracked], gradients: Sequence[Any]) -> bool:
    """Add gradients to their accumulators, and tell whether they make a step now."""
    counter = optimizer._state.counter(slot_layout.ACCUMULATED_STEPS)
    count = int(counter.peek()) + 1
    complete = count >= optimizer._settings.steps
    gather(optimizer, tracked, gradients)
    wait_for_pending()
    counter.set(0 if complete else count)
    return complete


def take_mean(optimizer: Optimizer, tracked: Sequence[Tracked]) -> list[Any]:
    """Mean of the gathered gradients in the variables' layout; the accumulators start again at zero.

    In the dtype of what the rule updates, but not in float16, which cannot hold what loss scaling makes of it.
    """
    means = []
    for item in tracked:
        total = optimizer._state.slots.get(slot_layout.ACCUMULATED_GRADIENT, item)
        dtype = master_copies.state_dtype(optimizer._settings.master_copies, item)
        mean = total.read_value() / optimizer._settings.steps
        mean = tf.cast(mean, compute_dtype(dtype) if dtype == tf.float16 else dtype)
        means.append(placement.relayout(mean, item.layout))
        total.assign(tf.zeros_like(total))
    if tf.executing_eagerly():
        optimizer._gathering.clear()
    return means


def has_gathered(optimizer: Optimizer, tracked: Tracked) -> Any:
    """A bool tensor: whether the variable's accumulator holds anything."""
    total = optimizer._state.slots.get(slot_layout.ACCUMULATED_GRADIENT, tracked)
    return tf.logical_not(tf.equal(tf.reduce_max(tf.abs(total.read_value())), 0))
