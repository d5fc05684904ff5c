"""The local executor: eager steps on the shards themselves.

DTensor decomposes every fused op and runs each part as its own SPMD function. Here each variable is unpacked once, when
the plan is made, into one resource handle per local device. A step then updates the shards of all devices with one call
of dtopt's own kernel (`native.py`). Shards that it cannot update use TensorFlow's fused kernels or the rule's ops, one
thread per device; or, on request, one XLA body per device.

If slots are sharded further than their variable (ZeRO-1), each device updates the part of its shard that it has slots
for, and writes it into the same shard on the other devices too: dtopt's kernel while it reads and writes memory once.

The bits of a step: dtopt's kernel rounds every element in the same way, wherever it is in a shard. So for elementwise
rules the state is the same, bit for bit, on every mesh, layout, slot placement and number of threads. A norm is added
up in float64, in an order that depends on the shards. In the other dtypes its last bit changes the rounded factor about
once in 10⁸ steps; in float64 it may at once. TensorFlow's kernels round the last few elements of a shard differently
from the others, so that with them meshes agree only up to rounding.

DTensor runs asynchronously and a local handle does not wait for it, so a step begins by waiting for pending work
(`wait_for_pending`). Local ops are synchronous, so later work of DTensor comes after them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from optim import slot_layout
from optim.devices import Call, call_all, handles_of, on_every_device, wait_for_pending
from optim.executors import native, one_op, portable, shard_step
from optim.executors.launched import LaunchedGradients
from optim.executors.plan import Plan, Selection, Shard
from optim.executors.rows import has_whole_rows, moved_rows, row_gradient
from optim.executors.shard_gradients import ShardGradients, Tensors
from optim.executors.work import Group, Work
from optim.native import direct
from optim.options.clipping import clip
from optim.precision import compute_dtype
from optim.state.row_gradient import RowGradient
from optim.state.tracked import Tracked

__all__ = ["Plan", "handles_of", "run", "wait_for_pending"]


Stepped = bool | Callable[[], bool]
"""Whether there was a step; or a function that waits for the GPU and returns that."""


def run(work: Work, plan: Plan) -> Stepped:
    """Run one step. The caller has waited for pending work.

    Returns:
      Whether there was a step: under loss scaling, a gradient that is not finite leaves everything unchanged.
    """
    if not _can_hold(work):
        return _by_one_op(work)
    selection = plan.selection(work.tracked)
    tensors = _tensors(work, selection)
    if native.decides_there(work, work.gradients) and native.is_one_gpu(native.arrange(work, selection)):
        return _launched(work, selection, tensors)
    gradients = ShardGradients(tensors, selection)
    if slot_layout.MASTER in work.slots.names and native.arrange(work, selection).rest:
        gradients.cast()
    if work.loss_scale is not None:
        if not gradients.is_finite():
            return False
        gradients = gradients.scale([1.0 / work.loss_scale] * len(work.gradients))
    _update(work, plan, selection, clip(gradients, work.clip))
    return True


def _launched(work: Work, selection: Selection, tensors: Tensors) -> Stepped:
    """Launch a step whose result the host does not know before the launch."""
    scale, checks = 1.0 if work.loss_scale is None else 1.0 / work.loss_scale, work.loss_scale is not None
    clipped = clip(LaunchedGradients(tensors, len(work.gradients), scale, checks), work.clip)
    native.step(work, native.arrange(work, selection), clipped)
    return clipped.was_left_out if checks else True


def _update(work: Work, plan: Plan, selection: Selection, gradients: ShardGradients) -> None:
    """Update all shards of all devices."""
    batches = native.arrange(work, selection)
    native.step(work, batches, gradients)
    if not batches.rest:
        return
    if work.jit_compile:
        on_every_device(list(batches.rest), lambda d: _compiled_step(work, plan, batches.rest[d], gradients, d))
    else:
        _by_tensorflow(work, plan, batches.rest, gradients)
    _round_masters(batches.rest)


def _can_hold(work: Work) -> bool:
    """Whether gradients can be held for the kernel, or some variable cannot be passed to it by its handle."""
    return direct.available() or not all(one_op.takes(work, i) for i in range(len(work.tracked)))


def _by_one_op(work: Work) -> bool:
    """Run a step of plain variables that the kernel updates, if gradients cannot be held."""
    if work.loss_scale is not None and not portable.is_finite(work):
        return False
    portable.run(work)
    wait_for_pending()
    return True


def _round_masters(by_device: Mapping[str, Sequence[tuple[int, Shard]]]) -> None:
    on_every_device(list(by_device), lambda device: shard_step.round_masters(by_device[device]))


def _by_tensorflow(
    work: Work, plan: Plan, rest: Mapping[str, Sequence[tuple[int, Shard]]], gradients: ShardGradients
) -> None:
    """Update shards with TensorFlow's kernels.

    If a device updates only a part of a shard, the parts are kept until all devices of a round have computed theirs,
    and then written. A round is as large as the largest shard.
    """
    devices = list(rest)
    scalars = {factor: {**values, "zero": 0.0} for factor, values in work.coefficients.items()}
    sent: dict[tuple[str, Group, str], Mapping[str, Any]] = {}

    def arguments(device: str, i: int, shard: Shard) -> tuple[Any, Mapping[str, Any], float | None]:
        factor = work.rate_factors[i]
        key = (device, factor, shard.dtype.name)
        if key not in sent:
            sent[key] = plan.scalars[device].tensors(scalars[factor], factor, compute_dtype(shard.dtype))
        return gradients.part(i, shard.part), sent[key], work.decay_factors[i]

    calls: dict[str, list[Call]] = {device: [] for device in devices}
    slow: dict[str, list[tuple[int, Shard]]] = {device: [] for device in devices}
    for device, placed in rest.items():  # made in one thread: several would only wait for Python's lock
        with tf.device(device):
            for i, shard in placed:
                kernel = shard_step.only_kernel(work, shard, i) if gradients.has_no_pending else None
                if kernel is not None:
                    gradient, numbers, _ = arguments(device, i, shard)
                    calls[device].append(kernel(work.rule(i), shard.variable, shard.slots, gradient, numbers))
                elif shard.box is None:
                    slow[device].append((i, shard))

    def update_whole(device: str) -> None:
        call_all(calls[device])
        for i, shard in slow[device]:  # made one by one, so that there is at most one gradient at a time
            shard_step.update(work, i, shard, *arguments(device, i, shard))

    def in_round(members: set[int]) -> None:
        new: dict[Shard, Any] = {}

        def update_boxes(device: str) -> None:
            for i, shard in rest[device]:
                if i in members:
                    new[shard] = shard_step.update_box(work, i, shard, *arguments(device, i, shard))

        def write_boxes(device: str) -> None:
            for i, shard in rest[device]:
                for source in (shard, *shard.partners) if i in members else ():
                    shard_step.write_box(shard, source.box, new[source])

        on_every_device(devices, update_boxes)
        on_every_device(devices, write_boxes)

    on_every_device(devices, update_whole)
    for members in _rounds(rest):
        in_round(members)


def _rounds(rest: Mapping[str, Sequence[tuple[int, Shard]]]) -> Iterator[set[int]]:
    """Yield groups of the variables updated in part, each group at most as large as the largest variable."""
    sizes = {i: math.prod(s.box.shape) * s.dtype.size for placed in rest.values() for i, s in placed if s.box}
    members: set[int] = set()
    for i, size in sizes.items():
        if sum(sizes[k] for k in members) + size > max(sizes.values()):
            yield members
            members = set()
        members.add(i)
    if members:
        yield members


def _tensors(work: Work, selection: Selection) -> Tensors:
    """Return the gradients as shards."""
    row_gradients = {}
    if RowGradient in set(map(type, work.gradients)) or any(work.lazy):
        row_gradients = {i: row for i, g in enumerate(work.gradients) if (row := _by_row(g, work, i)) is not None}
    gradients, held_tensors = work.gradients, work.held_tensors
    if any("GPU:" in device for device in selection.devices):
        gradients, held_tensors = [*map(_moved, work.gradients, work.tracked)], None
    if row_gradients:
        gradients = [
            [row_gradients[i].sums] * selection.counts[i] if i in row_gradients else g for i, g in enumerate(gradients)
        ]
    on_mesh = [t.layout is not None and i not in row_gradients for i, t in enumerate(work.tracked)]
    rows = {i: gradient.places for i, gradient in row_gradients.items()}
    return Tensors(gradients, on_mesh, rows, None if row_gradients else held_tensors)


def _moved(gradient: Any, tracked: Tracked) -> Any:
    """Return a gradient of a variable on a GPU, moved to that GPU."""
    is_there = tracked.mesh is not None or isinstance(gradient, RowGradient)
    if is_there or not native.on_gpu(tracked) or gradient.device == tracked.variable.device:
        return gradient
    with tf.device(tracked.variable.device):
        return tf.identity(gradient)


def _by_row(gradient: Any, work: Work, i: int) -> RowGradient | None:
    """Return the gradient if it is rows. Convert it to rows if no device alone knows which rows are all zero and must
    not change.
    """
    if isinstance(gradient, RowGradient):
        return gradient
    if work.lazy[i] and native.on_gpu(work.tracked[i]):
        return moved_rows(gradient, work.tracked[i])
    if not work.lazy[i] or has_whole_rows(work.tracked[i].layout):
        return None
    slices = tf.IndexedSlices(gradient, tf.range(gradient.shape[0], dtype=tf.int64))
    return row_gradient(slices, work.tracked[i], looks_at_sums=True).without_zeros()


def _compiled_step(
    work: Work, plan: Plan, placed: Sequence[tuple[int, Shard]], gradients: ShardGradients, device: str
) -> None:
    parts = [gradients.part(i, shard.part) for i, shard in placed]
    shard_step.update_compiled(work, plan, device, placed, parts)
