"""The local executor: eager steps on the shards themselves, one thread per device.

DTensor decomposes every fused op and runs each as its own SPMD function. Here each variable is unpacked once, when
the plan is made, into one resource handle per local device; a step then updates the shards of a device, all devices at
the same time: with one call of dtopt's own kernel (`native.py`) or, for what it cannot update, with TensorFlow's fused
kernels or the rule's ops; or, if asked to, with one XLA body per device.

DTensor runs asynchronously and a local handle does not wait for it, so a step begins by waiting for whatever is
pending (`wait_for`); local ops are synchronous, so whatever DTensor does next comes after.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim import slot_layout
from optim.clipping import clip
from optim.executors import kernels, native
from optim.executors.work import Work, averaged, compute_dtype, scaled, updated
from optim.master_copies import LOW_PRECISION, target
from optim.placement import layout_of
from optim.variables import SlotTable, Tracked


def handles_of(variable: tf.Variable) -> list[Any]:
    """One resource handle per local device; eager only."""
    if layout_of(variable) is None:
        return [variable.handle]
    return dtensor.unpack(variable.handle)


def wait_for(variable: tf.Variable) -> Any:
    """Value of a small replicated DVariable, read through DTensor's queues: all that was pending on every device of
    its mesh is done when this returns."""
    parts = dtensor.unpack(variable.read_value())
    values = [part.numpy() for part in parts]  # every part, not only the first: each is another device's queue
    return values[0]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix="optim-device")


def on_every_device(devices: Sequence[str], task: Callable[[str], Any]) -> list[Any]:
    """`task(device)` for all devices at once, the first in this thread; the first error is raised after all ended."""

    def placed(device: str) -> Any:
        with tf.device(device):
            return task(device)

    others = [_pool().submit(placed, device) for device in devices[1:]]
    results: list[Any] = []
    failure: BaseException | None = None
    try:
        results.append(placed(devices[0]))
    except BaseException as error:  # the other devices' threads must end before anything is raised
        failure = error
    for other in others:
        failure = failure or other.exception()
        if failure is None:
            results.append(other.result())
    if failure is not None:
        raise failure
    return results


class Shard:
    """The part of one model variable and of its slots on one device, as resource handles."""

    def __init__(self, tracked: Tracked, variable: Any, slots: Mapping[str, Any], part: int, primary: bool):
        self.tracked = tracked
        master = slots.get(slot_layout.MASTER)
        self.variable = variable if master is None else master
        """What the rule updates: the variable, or its master copy."""
        self.dtype = tracked.variable.dtype if master is None else tf.float32
        self.rounding = None if master is None else variable
        """The variable, where that is the rounding of its master copy."""
        self.slots = slots
        self.part = part
        self.primary = primary
        """Whether this device's copy counts in norms: exactly one of the replicas of each shard does."""


class Plan:
    """Handles of all tracked variables and slots, by device, unpacked once."""

    def __init__(self, tracked: Sequence[Tracked], slots: SlotTable):
        self.by_device: dict[str, list[Shard]] = {}
        for item in tracked:
            slot_handles = {n: handles_of(v) for n in slots.names if (v := slots.find(n, item)) is not None}
            primary = _primary_parts(item.layout)
            for part, handle in enumerate(handles_of(item.variable)):
                mine = {name: parts[part] for name, parts in slot_handles.items()}
                shard = Shard(item, handle, mine, part, primary[part])
                self.by_device.setdefault(handle.device, []).append(shard)
        self.devices = list(self.by_device)
        self.scalars = {device: _DeviceScalars() for device in self.devices}
        self.batches = {device: native.Batches() for device in self.devices}
        self._compiled: dict[tuple[Any, ...], Any] = {}


def _primary_parts(layout: dtensor.Layout | None) -> list[bool]:
    if layout is None:
        return [True]
    mesh = layout.mesh
    unused = [axis for axis in mesh.dim_names if axis not in layout.sharding_specs]
    return [all(place[axis] == 0 for axis in unused) for place in mesh.local_device_locations()]


class _DeviceScalars:
    """Scalar tensors on one device; a value that did not change is not sent again."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, float, str], tuple[float, Any]] = {}

    def tensors(self, values: Mapping[str, float], rate_factor: float, dtype: tf.DType) -> dict[str, Any]:
        return {name: self._tensor(name, value, rate_factor, dtype) for name, value in values.items()}

    def _tensor(self, name: str, value: float, rate_factor: float, dtype: tf.DType) -> Any:
        key = (name, rate_factor, dtype.name)
        kept = self._kept.get(key)
        if kept is None or kept[0] != value:
            kept = self._kept[key] = (value, tf.constant(value, dtype))
        return kept[1]


class ShardGradients:
    """Gradients as local shards for `optim.clipping`: a list over variables of lists of shards, one per device.

    Clipping is left pending, because dtopt's own kernel does it on the way: a gradient is its `parts` times its factor
    of `factors`, then clipped to ±`limit`.
    """

    def __init__(
        self,
        parts: Sequence[Sequence[Any]],
        primary: Sequence[Sequence[bool]],
        factors: list[float] | None = None,
        limit: float | None = None,
        squares: list[float] | None = None,
    ):
        self.parts = parts
        self.primary = primary
        self.factors = factors
        self.limit = limit
        self._squares = squares

    def part(self, i: int, k: int) -> Any:
        """The gradient of variable `i` on its k-th device, with nothing pending."""
        part = self.parts[i][k]
        if self.factors is not None and self.factors[i] != 1.0:
            part = scaled(part, self.factors[i])
        return part if self.limit is None else tf.clip_by_value(part, -self.limit, self.limit)

    def clip_values(self, limit: float) -> ShardGradients:
        if self.limit is not None:
            self._settle()
        return ShardGradients(self.parts, self.primary, self.factors, limit)

    def scale(self, factors: list[float]) -> ShardGradients:
        if self.limit is not None:
            self._settle()
        if self.factors is not None:
            factors = [a * b for a, b in zip(self.factors, factors, strict=True)]
        return ShardGradients(self.parts, self.primary, factors, squares=self._squares)

    def squared_norms(self) -> list[float]:
        if self.limit is not None:
            self._settle()
        squares = self._square_sums()
        if self.factors is not None:
            if not all(map(math.isfinite, squares)):  # too large before they are scaled down, it may be
                self._settle()
                return self._square_sums()
            squares = [square * factor**2 for square, factor in zip(squares, self.factors, strict=True)]
        return squares

    def is_finite(self) -> bool:
        """Whether all numbers are; asked before anything is pending. What it reads, a norm need not read again."""
        if all(map(math.isfinite, self._square_sums())):
            return True
        return not any(any(row) for row in self._each(lambda i, k: self.primary[i][k] and _has_bad(self.parts[i][k])))

    def _square_sums(self) -> list[float]:
        """Of each whole gradient, with nothing pending taken into account."""
        if self._squares is None:
            sums = self._each(lambda i, k: _square_sum(self.parts[i][k]) if self.primary[i][k] else 0.0)
            self._squares = [sum(per_variable) for per_variable in sums]
        return self._squares

    def sqrt(self, scalar: float) -> float:
        return math.sqrt(scalar)

    def maximum(self, a: float, b: float) -> float:
        return a if math.isnan(a) else max(a, b)

    def cast(self, dtypes: Sequence[tf.DType]) -> None:
        """Gradients of variables that have a master copy, brought to its dtype; others are left as they are."""
        self.parts = self._each(
            lambda i, k: self.parts[i][k] if dtypes[i] in LOW_PRECISION else tf.cast(self.parts[i][k], dtypes[i])
        )

    def _settle(self) -> None:
        """Carry out what is pending, once for all who hold this object."""
        self.parts = self._each(self.part)
        self.factors, self.limit, self._squares = None, None, None

    def _each(self, task: Callable[[int, int], Any]) -> list[list[Any]]:
        """`task(variable, k)` of every shard, run on the shard's device, devices at the same time."""
        places: dict[str, list[tuple[int, int]]] = {}
        for i, parts in enumerate(self.parts):
            for k, part in enumerate(parts):
                places.setdefault(part.device, []).append((i, k))
        results: list[list[Any]] = [[None] * len(parts) for parts in self.parts]

        def on_device(device: str) -> None:
            for i, k in places[device]:
                results[i][k] = task(i, k)

        on_every_device(list(places), on_device)
        return results


def _square_sum(part: Any) -> float:
    return 2.0 * float(tf.nn.l2_loss(tf.cast(part, compute_dtype(part.dtype))))


def _has_bad(part: Any) -> bool:
    return not bool(tf.reduce_all(tf.math.is_finite(part)))


def run(work: Work, plan: Plan) -> bool:
    """Carry out one step. The caller has waited for what was pending.

    Returns:
      Whether there was a step: under loss scaling, a gradient that is not finite leaves everything as it was.
    """
    gradients = _unpacked(work)
    if work.loss_scale is not None:
        if not gradients.is_finite():
            return False
        gradients = gradients.scale([1.0 / work.loss_scale] * len(work.gradients))
    clipped = clip(gradients, work.clip)
    assert isinstance(clipped, ShardGradients)
    _update(work, plan, clipped)
    return True


def _update(work: Work, plan: Plan, gradients: ShardGradients) -> None:
    """Update all shards of all devices."""
    indices = {t.index: i for i, t in enumerate(work.tracked)}

    def device_step(device: str) -> None:
        shards = [s for s in plan.by_device[device] if s.tracked.index in indices]
        if work.jit_compile:
            parts = [gradients.part(indices[s.tracked.index], s.part) for s in shards]
            _compiled_step(work, plan, device, shards, parts)
        else:
            batches = plan.batches[device]
            batches.arrange(work, shards, indices)
            native.step(work, batches, gradients, indices)
            _update_one_by_one(work, plan.scalars[device], batches.rest, gradients, indices)
        for shard in shards:
            if shard.rounding is not None:
                master = kernels.read(shard.variable, shard.dtype)
                kernels.assign(shard.rounding, tf.cast(master, shard.tracked.variable.dtype))

    on_every_device(plan.devices, device_step)


def _update_one_by_one(
    work: Work, scalars: _DeviceScalars, shards: Sequence[Shard], gradients: ShardGradients, indices: Mapping[int, int]
) -> None:
    """What dtopt's own kernel did not update."""
    tensors: dict[Any, Mapping[str, Any]] = {}  # those of a step, by factor of the learning rate and by dtype
    for shard in shards:
        i = indices[shard.tracked.index]
        key = (work.rate_factors[i], compute_dtype(shard.dtype))
        if key not in tensors:
            tensors[key] = scalars.tensors({**work.scalars(i), "zero": 0.0}, *key)
        _shard_step(work, shard, gradients.part(i, shard.part), tensors[key], work.decay_factors[i])


def _unpacked(work: Work) -> ShardGradients:
    """Gradients as shards, in the dtype in which they are used."""
    parts = [
        dtensor.unpack(g) if t.layout is not None else [g] for g, t in zip(work.gradients, work.tracked, strict=True)
    ]
    asks_for_norms = work.clip.active or work.loss_scale is not None
    gradients = ShardGradients(parts, [_primary_parts(t.layout) for t in work.tracked] if asks_for_norms else [])
    if slot_layout.MASTER in work.slots.names:
        gradients.cast([target(work.slots, t).dtype for t in work.tracked])
    return gradients


def _shard_step(work: Work, shard: Shard, gradient: Any, scalars: Mapping[str, Any], decay: float | None) -> None:
    assert work.rule is not None
    kernel = kernels.kernel_for(work.rule, shard.dtype)
    if kernel is not None:
        if decay is not None:
            kernels.assign(shard.variable, kernels.read(shard.variable, shard.dtype) * decay)
        kernel(work.rule, shard.variable, shard.slots, gradient, scalars)
    else:
        _update_by_ops(work, shard, gradient, scalars, decay)
    if work.ema.use_ema:
        _average(work, shard)


def _update_by_ops(work: Work, shard: Shard, gradient: Any, scalars: Mapping[str, Any], decay: Any) -> None:
    assert work.rule is not None
    slots = {
        s.name: tf.raw_ops.ReadVariableOp(resource=shard.slots[s.name], dtype=shard.dtype) for s in work.rule.slots
    }
    variable = tf.raw_ops.ReadVariableOp(resource=shard.variable, dtype=shard.dtype)
    value, new = updated(work.rule, variable, gradient, slots, scalars, decay)
    for name, slot in new.items():
        tf.raw_ops.AssignVariableOp(resource=shard.slots[name], value=slot)
    tf.raw_ops.AssignVariableOp(resource=shard.variable, value=value)


def _average(work: Work, shard: Shard) -> None:
    handle = shard.slots[slot_layout.AVERAGE]
    average = tf.raw_ops.ReadVariableOp(resource=handle, dtype=shard.dtype)
    value = tf.raw_ops.ReadVariableOp(resource=shard.variable, dtype=shard.dtype)
    new = averaged(average, value, work.ema.ema_momentum)
    tf.raw_ops.AssignVariableOp(resource=handle, value=new)
    if work.overwrite:
        tf.raw_ops.AssignVariableOp(resource=shard.variable, value=tf.identity(new))


def _compiled_step(work: Work, plan: Plan, device: str, shards: Sequence[Shard], gradients: Sequence[Any]) -> None:
    """The updates of all shards of a device as one XLA computation, compiled at the first step."""
    key = (
        device,
        tuple(s.tracked.index for s in shards),
        work.overwrite,
        tuple(d is None for d in work.decay_factors),
        tuple(work.rate_factors),
    )
    by_index = {t.index: i for i, t in enumerate(work.tracked)}
    places = [by_index[s.tracked.index] for s in shards]
    factors = [repr(work.rate_factors[i]) for i in places]
    if key not in plan._compiled:

        @tf.function(jit_compile=True, autograph=False)
        def body(gradients: Sequence[Any], scalars: Mapping[str, Any], decays: Sequence[Any]) -> None:
            with tf.device(device):
                for shard, factor, gradient, decay in zip(shards, factors, gradients, decays, strict=True):
                    _update_by_ops(work, shard, gradient, scalars[factor], decay)
                    if work.ema.use_ema:
                        _average(work, shard)

        plan._compiled[key] = body
    wide = {
        repr(factor): {name: tf.constant(value, tf.float64) for name, value in scalars.items()}
        for factor, scalars in work.coefficients.items()
    }
    decays = [work.decay_factors[i] for i in places]
    plan._compiled[key](list(gradients), wide, [None if d is None else tf.constant(d, tf.float64) for d in decays])
