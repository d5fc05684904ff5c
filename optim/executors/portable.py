"""The portable executor: one step in TensorFlow ops on whole tensors, DTensors or plain ones, eager or traced.

Inside a user's `tf.function` it does what dtopt's own kernel (`one_op.py`) does not. It needs no special layouts: it
brings every operand to the layout of the slots, computes the update there, and brings the result to the layout of the
variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim import slot_layout
from optim.executors import on_mesh, one_op, spread
from optim.executors.norms import square_sum, sum_of_parts
from optim.executors.packed import Packed
from optim.executors.work import Work, averaged, scaled, updated
from optim.layouts.cached_functions import unfolded
from optim.layouts.placement import layout_of, relayout
from optim.options.clipping import by_norms, clip
from optim.options.master_copies import target, write
from optim.options.option_objects import GradientsClipOption
from optim.precision import compute_dtype, constant, is_one_of_few
from optim.rule import Rule
from optim.state.row_gradient import window_sums
from optim.state.tracked import Tracked
from optim.summed_gradients import SummedGradient, summed


class TensorGradients:
    """Whole gradients for `optim.options.clipping`; norms are computed in at least float32."""

    def __init__(self, tensors: Sequence[Any]):
        self.tensors = list(tensors)

    def clip_values(self, limit: float) -> TensorGradients:
        return TensorGradients([unfolded(_clip_values, g, constant(limit, tf.float64)) for g in self.tensors])

    def squared_norms(self) -> list[Any]:
        # Added up over variables in float64, so that those of several dtypes have one joint norm.
        return [square_sum(g) for g in self.tensors]

    def scale(self, factors: list[Any]) -> TensorGradients:
        return TensorGradients([scaled(g, factor) for g, factor in zip(self.tensors, factors, strict=True)])

    def clip_norms(self, limit: float, is_joint: bool) -> TensorGradients:
        return by_norms(self, limit, is_joint)

    def sqrt(self, scalar: Any) -> Any:
        return tf.sqrt(tf.cast(scalar, tf.float64))

    def maximum(self, a: Any, b: Any) -> Any:
        return tf.maximum(a, b)


def _clip_values(gradient: Any, limit: Any) -> Any:
    limit = tf.cast(limit, gradient.dtype)
    return tf.clip_by_value(gradient, -limit, limit)


def clipped(gradients: Sequence[Any], option: GradientsClipOption) -> list[Any]:
    """Return gradients clipped by `option`; for `IndexedSlices` the slices are clipped, before those of one row are
    summed."""
    if not option.active:
        return list(gradients)
    dense = [g.values if isinstance(g, tf.IndexedSlices) else tf.convert_to_tensor(g) for g in gradients]
    result = clip(TensorGradients(dense), option)
    return [
        tf.IndexedSlices(new, old.indices, old.dense_shape) if isinstance(old, tf.IndexedSlices) else new
        for old, new in zip(gradients, result.tensors, strict=True)
    ]


def unscaled_and_clipped(gradients: Sequence[Any], option: GradientsClipOption, loss_scale: Any) -> list[Any]:
    """Return `clipped` after division by the loss scale; numbers that are not finite stay so, and `is_finite` finds
    them."""
    if loss_scale is None:
        return clipped(gradients, option)
    smaller = [_with_numbers(g, scaled(one_op.numbers_of(g), 1.0 / loss_scale)) for g in gradients]

    def where_finite(old: Any, new: Any) -> Any:
        old, new = one_op.numbers_of(old), one_op.numbers_of(new)
        return tf.where(tf.math.is_finite(old), new, old)

    pairs = zip(smaller, clipped(smaller, option), strict=True)
    return [_with_numbers(old, where_finite(old, new)) for old, new in pairs] if option.active else smaller


def _with_numbers(gradient: Any, numbers: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(numbers, gradient.indices, gradient.dense_shape)
    return numbers


def is_finite(work: Work) -> Any:
    """Return whether all numbers in all gradients are finite: a bool eagerly, a bool tensor in a function."""
    if one_op.is_possible(work) and all(one_op.adds_squares(work, i) for i in range(len(work.tracked))):
        finite = tf.reduce_all(tf.math.is_finite(one_op.squared_norms(work.gradients)))
        return bool(finite) if tf.executing_eagerly() else finite
    here, gathered = one_op.by_window(work.gradients)
    tensors = list(map(one_op.numbers_of, here))
    if tf.executing_eagerly():
        return not any(sum_of_parts(_count_bad, g) for g in tensors)
    bad = [_count_bad(g) for g in tensors]
    bad += [tf.cast(is_bad, tf.float32) for _, is_bad in window_sums(gathered)]  # NaN
    return tf.equal(tf.add_n(bad), 0.0)


def _count_bad(gradient: Any) -> Any:
    return tf.reduce_sum(tf.cast(tf.logical_not(tf.math.is_finite(gradient)), tf.float32))


def run(work: Work) -> list[tf.Operation]:
    """Run one step; under loss scaling only after `is_finite` returned true. dtopt's own kernel does what it can.

    Returns:
      Inside a function, ops that may fail: anything that must not happen without the step has to wait for them.
    """
    left, done = one_op.step(work)
    if left is not None:
        with tf.control_dependencies(done):
            if left.jit_compile and not tf.executing_eagerly():
                tf.function(lambda: _run(left), jit_compile=True, autograph=False)()
            else:
                _run(left)
    return done


def _run(work: Work) -> None:
    gradients = list(work.gradients)
    if work.loss_scale is not None:
        gradients = [scaled(g, 1.0 / work.loss_scale) for g in gradients]
    if work.clip.active:
        gradients = clip(TensorGradients(gradients), work.clip).tensors
    for i, gradient in enumerate(gradients):
        if work.has_rules:
            update(work, i, gradient)
            continue
        _user_step(work, i, tf.cast(gradient, work.tracked[i].variable.dtype))
        if work.has_averages:
            on_mesh.call(work, i, gradient, _average_user_step)


def update(work: Work, i: int, gradient: Any) -> None:
    """Update variable number `i` by the rule, its slots and its average."""
    spread_update = spread.update_for(work, i)
    if spread_update is not None:
        spread.update(work, i, gradient, spread_update)
    else:
        on_mesh.call(work, i, gradient, _update)


def _update(work: Work, i: int, gradient: Any) -> None:
    value = rule_value(work, i, gradient)
    if work.has_averages:
        value = _average(work, i, value)
    write(work.slots, work.tracked[i], value)


def move_averages(work: Work) -> None:
    """Move the averages towards the current variables, and overwrite the variables when it is time; do nothing else."""
    for i, tracked in enumerate(work.tracked):
        average = work.slots.find(slot_layout.AVERAGE, tracked)
        if average is not None:
            on_mesh.call(work, i, average.read_value(), _average_user_step)


def _average_user_step(work: Work, i: int, gradient: Any) -> None:
    tracked = work.tracked[i]
    write(work.slots, tracked, _average(work, i, target(work.slots, tracked).read_value()))


def rule_value(work: Work, i: int, gradient: Any) -> Any:
    """Update the slots of variable number `i` and return its new value, or that of its master copy.

    The caller assigns the variable once, and continues with this value. Inside a `tf.function` a read after the
    assignment may give the old value if the update reduces over shards (observed with TF 2.21).
    """
    rule, tracked = work.rule(i), work.tracked[i]
    variable = target(work.slots, tracked)
    slots = work.slots.of(tracked, [s.name for s in rule.slots])
    layout = _update_layout(rule, tracked, layout_of(variable), slots)
    old_value = relayout(variable.read_value(), layout)
    whole = {name: slot.shape == variable.shape for name, slot in slots.items()}
    old = {n: relayout(s.read_value(), layout) if whole[n] else _part(s, rule.gathers(slots)) for n, s in slots.items()}
    packed = None if work.slots.packing(tracked, [*slots]) is None else Packed(work, i, layout)
    if packed is not None:
        stored_value, old_value = old_value, packed.variable(old_value)
        old = {name: packed.slot(name, old[name]) for name in old}
    gradient = relayout(gradient, layout)
    slices = work.slices_of(i)
    if slices is not None:
        gradient = SummedGradient(gradient, lambda power: slices.summed(power, int(variable.shape[0]), layout))
    scalars, decay = _scalars(work, i)
    value, new = updated(rule, old_value, gradient, old, scalars, decay)
    if rule.gathers(old):  # pin the other end, too, or DTensor's compiler shards matrix products in between
        value, new = relayout(value, layout), {name: _replicated(new[name], layout) for name in new}
    if work.lazy[i]:
        touched = relayout(_touched_rows(summed(gradient), work.named[i] if work.named else None), layout)
        value = tf.where(touched, value, old_value)
        if rule.keeps_lazy_slots:
            new = {name: tf.where(touched, new[name], old[name]) for name in new}
    if packed is not None:
        packed.assign(slots, new, lambda new, old: _choose(work.active[i], new, old))
        return _choose(work.active[i], packed.rounded(value, stored_value.dtype), stored_value)
    for name, slot in slots.items():
        slot.assign(relayout(_choose(work.active[i], new[name], old[name]), layout_of(slot)))
    return _choose(work.active[i], value, old_value)


def _part(slot: tf.Variable, is_gathered: bool) -> Any:
    """Return the value of a slot that is not shaped like its variable."""
    value = slot.read_value()
    return _replicated(value, layout_of(slot)) if is_gathered else value


def _replicated(value: Any, like: dtensor.Layout | None) -> Any:
    """Return a value whole on each device of the mesh of a layout."""
    return value if like is None else relayout(value, dtensor.Layout.replicated(like.mesh, value.shape.rank))


def _scalars(work: Work, i: int) -> tuple[dict[str, Any], Any]:
    """Return the scalars of variable number `i`, and its weight decay.

    TensorFlow keeps a tensor for each value of a Python number that an eager op combines with a tensor, so they are
    tensors.
    """
    scalars = work.scalars(i) if work.coefficients else {}
    decay = work.decay_factors[i]
    if not tf.executing_eagerly():
        return dict(scalars), decay
    wide = compute_dtype(work.tracked[i].variable.dtype)

    def tensor(value: Any) -> Any:
        return value if is_one_of_few(value) else constant(value, wide)

    return {name: tensor(value) for name, value in scalars.items()}, tensor(decay)


def _update_layout(
    rule: Rule, tracked: Tracked, default_layout: dtensor.Layout | None, slots: Mapping[str, Any]
) -> dtensor.Layout | None:
    """Return the layout in which a rule's update is computed; `own` is that of the variable it updates."""
    if rule.elementwise:  # then the work can be divided like the slots
        return next((layout_of(s) for s in slots.values()), default_layout)
    layout = tracked.layout
    if layout is not None and rule.gathers(slots):
        return dtensor.Layout.replicated(layout.mesh, layout.rank)
    return layout


def _touched_rows(gradient: Any, named: Any) -> Any:
    """Return a mask in the shape of the gradient: True in each row (along dim 0) that is `named`.

    If `named` is None, it is True in each row that has a nonzero number.
    """
    dims = list(range(1, gradient.shape.rank))
    if named is not None:
        times = tf.math.unsorted_segment_sum(tf.ones_like(named), named, gradient.shape[0])
        return tf.broadcast_to(tf.reshape(times > 0, [-1, *[1] * len(dims)]), gradient.shape)
    largest = tf.reduce_max(tf.abs(gradient), axis=dims, keepdims=True) if dims else tf.abs(gradient)
    return tf.broadcast_to(tf.logical_not(tf.equal(largest, 0)), gradient.shape)


def _user_step(work: Work, i: int, gradient: Any) -> None:
    tracked, decay = work.tracked[i], work.decay_factors[i]

    def step() -> tf.Tensor:
        if decay is not None:
            on_mesh.call(work, i, gradient, _decay)
        work.update_step(gradient, tracked.user_variable)
        return tf.constant(True)

    if work.active[i] is True:
        step()
    else:
        tf.cond(work.active[i], step, lambda: tf.constant(False))


def _decay(work: Work, i: int, gradient: Any) -> None:
    variable = work.tracked[i].variable
    variable.assign(tf.cast(scaled(variable.read_value(), work.decay_factors[i]), variable.dtype))


def _average(work: Work, i: int, value: Any) -> Any:
    """Update the average of variable number `i` from its new value; return the value that the variable ends with."""
    tracked, active = work.tracked[i], work.active[i]
    average = work.slots.get(slot_layout.AVERAGE, tracked)
    value, old = relayout(value, layout_of(average)), average.read_value()
    new = _choose(active, averaged(old, value, work.ema_momentum), old)
    average.assign(new)
    if work.overwrite is False:
        return value
    overwrite = work.overwrite if active is True else tf.logical_and(work.overwrite, active)
    return _choose(overwrite, new, value)


def _choose(condition: Any, yes: Any, no: Any) -> Any:
    if condition is True:
        return yes
    # A scalar condition over sharded operands kills the process in DTensor's SelectV2 (TF 2.21).
    return tf.where(tf.broadcast_to(condition, no.shape), yes, no)
