"""The portable executor: one step in TensorFlow ops on whole tensors, DTensors or plain ones, eager or traced.

Inside a user's `tf.function` this is the only way. It asks nothing of layouts: every operand is brought to the layout
of the slots, where the update is computed, and the result to the layout of the variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from optim import slot_layout
from optim.clipping import clip
from optim.executors.work import Work, averaged, cast_scalar, compute_dtype, updated
from optim.placement import layout_of, relayout
from optim.variables import Tracked


class TensorGradients:
    """Whole gradients for `optim.clipping`; norms are formed in at least float32."""

    def __init__(self, tensors: Sequence[Any]):
        self.tensors = list(tensors)

    def clip_values(self, limit: float) -> TensorGradients:
        return TensorGradients([tf.clip_by_value(g, -limit, limit) for g in self.tensors])

    def squared_norms(self) -> list[Any]:
        # Summed up in float64, so that variables of several dtypes have one joint norm.
        squares = [tf.reduce_sum(tf.square(tf.cast(g, compute_dtype(g.dtype)))) for g in self.tensors]
        return [tf.cast(square, tf.float64) for square in squares]

    def scale(self, factors: list[Any]) -> TensorGradients:
        scaled = []
        for gradient, factor in zip(self.tensors, factors, strict=True):
            wide = compute_dtype(gradient.dtype)
            scaled.append(tf.cast(tf.cast(gradient, wide) * tf.cast(factor, wide), gradient.dtype))
        return TensorGradients(scaled)

    def sqrt(self, scalar: Any) -> Any:
        return tf.sqrt(tf.cast(scalar, tf.float64))

    def maximum(self, a: Any, b: Any) -> Any:
        return tf.maximum(a, b)


def run(work: Work) -> None:
    """Carry out one step."""
    gradients = [relayout(g, t.layout) for g, t in zip(work.gradients, work.tracked, strict=True)]
    if work.clip.active:
        clipped = clip(TensorGradients(gradients), work.clip)
        assert isinstance(clipped, TensorGradients)
        gradients = clipped.tensors
    for tracked, gradient, decay, lazy in zip(work.tracked, gradients, work.decay_factors, work.lazy, strict=True):
        if work.rule is None:
            _user_step(work, tracked, gradient, decay)
        else:
            rule_step(work, tracked, gradient, decay, lazy)
    if work.ema.use_ema:
        for tracked in work.tracked:
            _average(work, tracked)


def rule_step(work: Work, tracked: Tracked, gradient: Any, decay: Any, lazy: bool = False) -> None:
    """The rule's update of one variable, in the layout of its slots."""
    assert work.rule is not None
    variable = tracked.variable
    slots = work.slots.of(tracked, [s.name for s in work.rule.slots])
    layout = tracked.layout
    if work.rule.elementwise:  # then the work can be divided as the slots are
        layout = next((layout_of(s) for s in slots.values()), layout)
    old_value = relayout(variable.read_value(), layout)
    whole = {name: slot.shape == variable.shape for name, slot in slots.items()}
    old = {n: relayout(s.read_value(), layout) if whole[n] else s.read_value() for n, s in slots.items()}
    gradient = relayout(gradient, layout)
    value, new = updated(work.rule, old_value, gradient, old, work.coefficients, decay)
    if lazy:
        touched = relayout(_touched_rows(gradient), layout)
        value = tf.where(touched, value, old_value)
        new = {name: tf.where(touched, new[name], old[name]) for name in new}
    for name, slot in slots.items():
        slot.assign(relayout(new[name], layout_of(slot)))
    variable.assign(relayout(value, tracked.layout))


def _touched_rows(gradient: Any) -> Any:
    """True, in the shape of the gradient, in each row (along dim 0) that has a number other than zero."""
    dims = list(range(1, gradient.shape.rank))
    largest = tf.reduce_max(tf.abs(gradient), axis=dims, keepdims=True) if dims else tf.abs(gradient)
    return tf.broadcast_to(tf.logical_not(tf.equal(largest, 0)), gradient.shape)


def _user_step(work: Work, tracked: Tracked, gradient: Any, decay: Any) -> None:
    variable = tracked.variable
    if decay is not None:
        wide = compute_dtype(variable.dtype)
        decayed = tf.cast(variable.read_value(), wide) * cast_scalar(decay, wide)
        variable.assign(tf.cast(decayed, variable.dtype))
    work.update_step(gradient, tracked.given)


def _average(work: Work, tracked: Tracked) -> None:
    variable = tracked.variable
    average = work.slots.get(slot_layout.AVERAGE, tracked)
    value = relayout(variable.read_value(), layout_of(average))
    new = averaged(average.read_value(), value, work.ema.ema_momentum, variable.dtype)
    average.assign(new)
    if work.overwrite is False:
        return
    variable.assign(relayout(_choose(work.overwrite, new, value), tracked.layout))


def _choose(condition: Any, yes: Any, no: Any) -> Any:
    if condition is True:
        return yes
    # A scalar condition over sharded operands kills the process in DTensor's SelectV2 (TF 2.21).
    return tf.where(tf.broadcast_to(condition, no.shape), yes, no)
