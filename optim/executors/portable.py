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
from optim.executors.work import Work, averaged, compute_dtype, updated
from optim.placement import layout_of, relayout
from optim.variables import Tracked


class TensorGradients:
    """Whole gradients for `optim.clipping`; norms are formed in at least float32."""

    def __init__(self, tensors: Sequence[Any]):
        self.tensors = list(tensors)

    def clip_values(self, limit: float) -> TensorGradients:
        return TensorGradients([tf.clip_by_value(g, -limit, limit) for g in self.tensors])

    def squared_norms(self) -> list[Any]:
        return [tf.reduce_sum(tf.square(tf.cast(g, compute_dtype(g.dtype)))) for g in self.tensors]

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
    for tracked, gradient, decay in zip(work.tracked, gradients, work.decay_factors, strict=True):
        if work.rule is None:
            _user_step(work, tracked, gradient, decay)
        else:
            rule_step(work, tracked, gradient, decay)
    if work.ema.use_ema:
        for tracked in work.tracked:
            _average(work, tracked)


def rule_step(work: Work, tracked: Tracked, gradient: Any, decay: Any) -> None:
    """The rule's update of one variable, in the layout of its slots."""
    assert work.rule is not None
    variable = tracked.variable
    slots = work.slots.of(tracked, [s.name for s in work.rule.slots])
    layout = next((layout_of(s) for s in slots.values()), tracked.layout)
    value, new = updated(
        work.rule,
        relayout(variable.read_value(), layout),
        relayout(gradient, layout),
        {name: relayout(slot.read_value(), layout) for name, slot in slots.items()},
        work.coefficients,
        decay,
    )
    for name, slot in slots.items():
        slot.assign(relayout(new[name], layout_of(slot)))
    variable.assign(relayout(value, tracked.layout))


def _user_step(work: Work, tracked: Tracked, gradient: Any, decay: Any) -> None:
    variable = tracked.variable
    if decay is not None:
        variable.assign(variable * tf.cast(decay, variable.dtype))
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
