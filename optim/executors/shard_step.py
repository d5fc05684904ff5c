"""The update of single shards by TensorFlow's kernels: fused ones, the rule's ops, or one XLA body per device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from optim import devices, slot_layout
from optim.executors import kernels
from optim.executors.plan import Plan, Shard
from optim.executors.work import Work, averaged, updated
from optim.layouts.shard_slices import Box
from optim.precision import constant
from optim.rule import Rule


def update_box(work: Work, i: int, shard: Shard, gradient: Any, scalars: Mapping[str, Any], decay: float | None) -> Any:
    """Make one step of the part of a shard that this device has slots for. Returns its new value; the caller writes
    it."""
    assert shard.box is not None
    begin, end = shard.box.begin, shard.box.end
    value = tf.strided_slice(devices.read(shard.variable, shard.dtype), begin, end)
    copy = tf.Variable(value, trainable=False)
    part = Shard(shard.tracked, copy.handle, shard.slots)
    update(work, i, part, tf.strided_slice(gradient, begin, end), scalars, decay)
    return copy.read_value()


def write_box(shard: Shard, box: Box | None, value: Any) -> None:
    """Write the result of some device for a box into a shard on the device that this runs on.

    Use one thread at a time: TensorFlow's kernel does not lock the variable against another writer.
    """
    assert box is not None
    tf.raw_ops.ResourceStridedSliceAssign(
        ref=shard.variable, begin=box.begin, end=box.end, strides=[1] * len(box.begin), value=tf.identity(value)
    )


def update(work: Work, i: int, shard: Shard, gradient: Any, scalars: Mapping[str, Any], decay: float | None) -> None:
    """Make one step of a whole shard of variable number `i` on the device that this runs on."""
    rule = work.rule(i)
    kernel = kernels.kernel_for(rule, shard.dtype)
    if kernel is not None:
        if decay is not None:
            devices.assign(shard.variable, devices.read(shard.variable, shard.dtype) * constant(decay, shard.dtype))
        devices.call(*kernel(rule, shard.variable, shard.slots, gradient, scalars))
    else:
        _update_by_ops(rule, shard, gradient, scalars, decay)
    if work.has_averages:
        _average(work, shard, work.ema_momentum)


def only_kernel(work: Work, shard: Shard, i: int) -> kernels.Kernel | None:
    """Return the kernel whose one call does all of `update` for variable number `i`; None if more is needed."""
    if shard.box is not None or work.decay_factors[i] is not None or work.has_averages:
        return None
    return kernels.kernel_for(work.rule(i), shard.dtype)


def round_masters(placed: Sequence[tuple[int, Shard]]) -> None:
    """Write the roundings of master copies into their variables, on the device that this runs on."""
    for _, shard in placed:
        if shard.rounding is not None:
            master = devices.read(shard.variable, shard.dtype)
            devices.assign(shard.rounding, tf.cast(master, shard.tracked.variable.dtype))


def _update_by_ops(rule: Rule, shard: Shard, gradient: Any, scalars: Mapping[str, Any], decay: Any) -> None:
    slots = {s.name: tf.raw_ops.ReadVariableOp(resource=shard.slots[s.name], dtype=shard.dtype) for s in rule.slots}
    variable = tf.raw_ops.ReadVariableOp(resource=shard.variable, dtype=shard.dtype)
    value, new = updated(rule, variable, gradient, slots, scalars, decay)
    for name, slot in new.items():
        tf.raw_ops.AssignVariableOp(resource=shard.slots[name], value=slot)
    tf.raw_ops.AssignVariableOp(resource=shard.variable, value=value)


def _average(work: Work, shard: Shard, momentum: Any) -> None:
    handle = shard.slots[slot_layout.AVERAGE]
    average = tf.raw_ops.ReadVariableOp(resource=handle, dtype=shard.dtype)
    value = tf.raw_ops.ReadVariableOp(resource=shard.variable, dtype=shard.dtype)
    new = averaged(average, value, momentum)
    tf.raw_ops.AssignVariableOp(resource=handle, value=new)
    if work.overwrite:
        tf.raw_ops.AssignVariableOp(resource=shard.variable, value=tf.identity(new))


def update_compiled(
    work: Work, plan: Plan, device: str, placed: Sequence[tuple[int, Shard]], gradients: Sequence[Any]
) -> None:
    """Run the updates of all shards of a device as one XLA computation, compiled at the first step."""
    shards = [shard for _, shard in placed]
    decays = [work.decay_factors[i] for i, _ in placed]
    factors = [repr(work.rate_factors[i]) for i, _ in placed]
    rules = [work.rule(i) for i, _ in placed]
    key = (
        device,
        tuple(s.tracked.index for s in shards),
        work.overwrite,
        tuple(d is None for d in decays),
        tuple(factors),
    )
    if key not in plan.compiled:

        @tf.function(jit_compile=True, autograph=False)
        def body(gradients: Sequence[Any], scalars: Mapping[str, Any], decays: Sequence[Any], momentum: Any) -> None:
            with tf.device(device):
                columns = zip(rules, shards, factors, gradients, decays, strict=True)
                for rule, shard, factor, gradient, decay in columns:
                    _update_by_ops(rule, shard, gradient, scalars[factor], decay)
                    if work.has_averages:
                        _average(work, shard, momentum)

        plan.compiled[key] = body
    wide = {
        repr(factor): {name: constant(value, tf.float64) for name, value in scalars.items()}
        for factor, scalars in work.coefficients.items()
    }
    decay_factors = [None if d is None else constant(d, tf.float64) for d in decays]
    plan.compiled[key](list(gradients), wide, decay_factors, constant(work.ema_momentum, tf.float64))
