"""A step of variables by dtopt's own kernel, as one op for all that have equal properties.

It is used inside a `tf.function`, in the replicas of a `tf.distribute` strategy, and eagerly if gradients of plain
variables have only some rows.

The op gets the variables' handles, so that TensorFlow orders it among other reads and writes in a function. Scales,
clipping, weight decay, averages and roundings of master copies happen while it reads and writes memory once. On a mesh
each device runs it on its parts (`native/spmd.py`), and finds slots without their handles (`mesh_groups.py`). If slots
are sharded further than their variable, the last device steps all parts. XLA cannot compile the op, so under XLA the
portable executor makes the steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim import slot_layout
from optim.devices import needs_ops, on_host
from optim.executors import native
from optim.executors.norms import square_sum
from optim.executors.plan import why_not_in_shards
from optim.executors.rows import has_whole_rows
from optim.executors.work import Work
from optim.layouts.placement import layout_of
from optim.native import gpu, library, spmd
from optim.native.generate import Program
from optim.options.clipping import by_norms, clip
from optim.options.master_copies import target
from optim.options.option_objects import GradientsClipOption
from optim.precision import compute_dtype, float64s
from optim.rule import Rule
from optim.state import mesh_groups
from optim.state.row_gradient import RowGradient, at_hand, window_arguments, window_sums
from optim.state.slots import SlotTable
from optim.state.tracked import Tracked

LISTS = ("variables", "slots", "averages", "roundings")
"""Handles, under the op's names."""


def takes(work: Work, i: int) -> bool:
    """Whether the kernel updates variable number `i`."""
    if work.needs_metadata(i):
        return False
    if work.lazy[i] and not isinstance(work.gradients[i], RowGradient) and not has_whole_rows(work.tracked[i].layout):
        return False  # no device knows whether a row is all zero
    if work.lazy[i] and native.on_gpu(work.tracked[i]) and not isinstance(work.gradients[i], RowGradient):
        return False  # a launch updates all rows
    return updates(work.rules[i], work.tracked[i], work.slots, is_sum=work.slices_of(i) is not None)


def updates(rule: Rule | None, tracked: Tracked, slots: SlotTable, is_sum: bool = False) -> bool:
    """Whether the kernel can update a variable, given its handle. `is_sum`: as for `native.program_of`."""
    variable = at_hand(tracked.variable)
    if variable is None or "/job:ps" in variable.device:
        return False
    if tracked.mesh is not None and (tf.executing_eagerly() or not is_divided_well(rule, tracked, slots)):
        return False  # eager steps use the local executor
    return not native.why_not(rule, tracked, slots, is_sum)


def is_divided_well(rule: Rule | None, tracked: Tracked, slots: SlotTable) -> bool:
    """Whether devices can step their parts of variable and slots, so that a function on their mesh may use the op."""
    if rule is None or not spmd.available():
        return False
    if rule.elementwise:
        return not why_not_in_shards(rule, tracked, slots)
    names = [*(slot.name for slot in rule.slots), slot_layout.AVERAGE, slot_layout.MASTER]
    layouts = [tracked.layout, *map(layout_of, slots.of(tracked, names).values())]
    return not any(map(_is_divided, layouts))  # every device has all addends


def _is_divided(layout: dtensor.Layout | None) -> bool:
    return layout is not None and any(layout.num_shards(dim) > 1 for dim in range(layout.rank))


def takes_rows(rule: Rule | None, tracked: Tracked, slots: SlotTable, is_sum: bool = False) -> bool:
    """Whether the gradient of a variable may be a `RowGradient`: the kernel updates it."""
    if rule is None or not rule.elementwise:
        return False
    return library.status().available and not needs_ops() and updates(rule, tracked, slots, is_sum)


def adds_squares(work: Work, i: int) -> bool:
    """Whether a sum of squares by the kernel, in float64, shows if a gradient is finite."""
    is_here = work.tracked[i].mesh is None and not native.on_gpu(work.tracked[i])
    return is_here and takes(work, i) and work.gradients[i].dtype != tf.float64


def is_possible(work: Work) -> bool:
    """Whether the kernel can take part in this step."""
    return not work.only_ops and work.has_rules and library.status().available and not needs_ops()


def takes_all(work: Work) -> bool:
    """Whether the kernel updates all variables of this step."""
    return is_possible(work) and all(takes(work, i) for i in range(len(work.tracked)))


def place_of_scalars(tracked: Sequence[Tracked]) -> AbstractContextManager[Any]:
    """Return where the scalars of a step are computed: for launches on the host, which passes the numbers."""
    launches = gpu.is_on() and not needs_ops() and any(item.mesh is None and native.on_gpu(item) for item in tracked)
    return on_host() if launches else nullcontext()


def control(work: Work, is_finite: Callable[[Work], Any]) -> Any:
    """Return the GPU's control tensor of a step in a function: whether it is left out, and the factors of gradients.

    None if the host needs to know these, or if there is nothing to know.

    Args:
      is_finite: on a mesh returns whether all numbers in all gradients are finite.
    """
    if any(item.mesh is not None for item in work.tracked):
        return _control_on_mesh(work, is_finite) if native.on_gpu(work.tracked[0]) else None
    if not takes_all(work) or not native.decides_there(work, work.gradients):
        return None
    devices = {at_hand(tracked.variable).device for tracked in work.tracked}
    if len(devices) > 1:
        return None
    limit, is_joint = work.clip.norm or (0.0, False)
    scale = 1.0 if work.loss_scale is None else 1.0 / work.loss_scale
    with on_host():
        numbers = float64s([scale, limit])
    with tf.device(devices.pop()):
        return library.ops().dtopt_control(
            gradients=[*map(numbers_of, work.gradients)],
            numbers=numbers,
            is_joint=is_joint,
            checks=work.loss_scale is not None,
        )


def _control_on_mesh(work: Work, is_finite: Callable[[Work], Any]) -> Any:
    """Return `control` for a mesh of GPUs, by TensorFlow's ops."""
    is_scaled = work.loss_scale is not None
    if work.clip.needs_clipped_norms or not (is_scaled or work.clip.norm) or not takes_all(work):
        return None
    squares = _square_sums_on_mesh(work, work.gradients)
    pending = clip(_unscaled(work, lambda _: squares), replace(work.clip, clipvalue=None))
    finite: Any = True
    if is_scaled and any(gradient.dtype == tf.float64 for gradient in work.gradients):
        finite = is_finite(work)  # their squares may be infinite although gradients are finite
    elif is_scaled:
        finite = tf.reduce_all(tf.math.is_finite(tf.stack(squares)))
    is_left_out = tf.logical_not(finite)
    return float64s([tf.cast(is_left_out, tf.float64), *(pending.factors or ())])


def was_taken(work: Work) -> Any:
    """Return whether a step with a `control` was made: a bool tensor of the host, or of the mesh."""
    on_mesh = work.tracked[0].mesh is not None
    with nullcontext() if on_mesh else tf.device(work.control.device):
        is_left_out = work.control[0]
    with nullcontext() if on_mesh else on_host():
        return tf.equal(is_left_out, 0.0)


def step(work: Work) -> tuple[Work | None, list[tf.Operation]]:
    """Update the variables that the kernel takes.

    Returns:
      The step of the other variables, None if there are no others; and, inside a function, the ops that make the step.
    """
    mine = [i for i in range(len(work.tracked)) if takes(work, i)] if is_possible(work) else []
    if not mine:
        return work, []
    clipped = _clipped(work)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i in mine:
        tracked = work.tracked[i]
        goal = target(work.slots, tracked)
        program: Any = native.program_of(work.rules[i], tracked, work.slots, work.slices_of(i) is not None)
        packing = work.slots.packing(tracked, program.slots)
        key = (program, at_hand(goal).device, goal.dtype, goal is tracked.variable, packing, work.rate_factors[i])
        groups.setdefault(key, []).append(i)
    done: list[tf.Operation] = []
    with_rows = {
        key: any(isinstance(work.gradients[i], RowGradient) for i in members) for key, members in groups.items()
    }
    for key in sorted(
        groups, key=with_rows.__getitem__, reverse=True
    ):  # these may fail, so they come before anything else changes
        with tf.control_dependencies(done):
            op = _update(work, groups[key], clipped, key[0])
        done += [op] if op is not None else []
    positions = set(mine)
    rest = [i for i in range(len(work.tracked)) if i not in positions]
    return _rest(work, rest, clipped) if rest else None, done


def _clipped(work: Work) -> PendingGradients:
    if work.control is not None:  # the position of each factor there
        return PendingGradients(
            work.gradients, _none, [float(1 + i) for i in range(len(work.gradients))], work.clip.clipvalue
        )
    return clip(_unscaled(work, _adding_up(work)), work.clip)


def _unscaled(work: Work, square_sums: Callable[[Sequence[Any]], list[Any]]) -> PendingGradients:
    """Return the gradients, divided by the loss scale."""
    gradients = PendingGradients(work.gradients, square_sums)
    if work.loss_scale is None:
        return gradients
    return gradients.scale([1.0 / work.loss_scale] * len(work.gradients))


def _none(gradients: Sequence[Any]) -> list[Any]:
    raise AssertionError("a GPU adds up")


def _adding_up(work: Work) -> Callable[[Sequence[Any]], list[Any]]:
    """Return the function that computes the sum of squares of each gradient."""
    if any(tracked.mesh is not None for tracked in work.tracked):
        return _square_sums_of_wholes if tf.executing_eagerly() else functools.partial(_square_sums_on_mesh, work)
    if not any(map(native.on_gpu, work.tracked)):
        return _square_sums
    devices = {at_hand(tracked.variable).device for tracked in work.tracked}
    if len(devices) == 1 and all(map(native.adds_up_on, work.tracked)):
        (device,) = devices
        return lambda gradients: tf.unstack(native.squares_on_gpu([*map(numbers_of, gradients)], device))
    return _square_sums_of_wholes


def squared_norms(gradients: Sequence[Any]) -> Any:
    """Return the sum of squares of each gradient without a mesh, a float64 vector."""
    return library.ops().dtopt_square_sums(tensors=[numbers_of(gradient) for gradient in gradients])


def _square_sums(gradients: Sequence[Any]) -> list[Any]:
    sums_: list[Any] = tf.unstack(squared_norms(gradients), len(gradients))
    return sums_


def _square_sums_of_wholes(gradients: Sequence[Any]) -> list[Any]:
    """Return sums across several devices: the op would see the numbers of only one."""
    return [square_sum(numbers_of(gradient)) for gradient in gradients]


def _square_sums_on_mesh(work: Work, gradients: Sequence[Any]) -> list[Any]:
    """Return sums to which each device adds its parts."""
    here = [i for i, gradient in enumerate(gradients) if not _has_window(gradient)]
    gathered = iter(window_sums([gradient for gradient in gradients if _has_window(gradient)]))
    if not here or any(gradients[i].dtype not in native.DTYPES for i in here):
        sums_here = iter(_square_sums_of_wholes([gradients[i] for i in here]))
    else:
        mesh = work.tracked[0].mesh
        assert mesh is not None
        tensors = [numbers_of(gradients[i]) for i in here]

        def write(into: Any) -> None:
            library.ops().dtopt_part_squares(gradients=tensors, into=into)

        sums = mesh_groups.summed(mesh, [len(here)], write)
        sums_here = iter([sums[k] / _copies(gradients[i], work.tracked[i]) for k, i in enumerate(here)])
    return [next(gathered)[0] if _has_window(gradient) else next(sums_here) for gradient in gradients]


def _copies(gradient: Any, tracked: Tracked) -> int:
    """Return how many devices of a mesh have each number of a gradient: all have rows, which are not divided."""
    assert tracked.layout is not None
    layout = tracked.layout
    is_rows = isinstance(gradient, RowGradient)
    return layout.mesh.size // (1 if is_rows else math.prod(layout.num_shards(dim) for dim in range(layout.rank)))


def _has_window(gradient: Any) -> bool:
    return isinstance(gradient, RowGradient) and gradient.window is not None


def by_window(gradients: Sequence[Any]) -> tuple[list[Any], list[RowGradient]]:
    """Split into gradients whose numbers are at hand, and those that the step takes from the sum over a window of
    calls."""
    return [g for g in gradients if not _has_window(g)], [g for g in gradients if _has_window(g)]


def numbers_of(gradient: Any) -> Any:
    """Return the tensor of a dense gradient, or of the existing rows."""
    if isinstance(gradient, tf.IndexedSlices):
        return gradient.values
    return gradient.sums if isinstance(gradient, RowGradient) else gradient


class PendingGradients:
    """Gradients for `optim.options.clipping`: each a tensor times its factor, then clipped to ±`limit`.

    The kernel applies both in its pass. `square_sums` returns the sums of their squares, float64 scalars.
    """

    def __init__(
        self,
        tensors: Sequence[Any],
        square_sums: Callable[[Sequence[Any]], list[Any]],
        factors: Sequence[Any] | None = None,
        limit: float | None = None,
    ):
        self.tensors = list(tensors)
        self.factors = factors
        self.limit = limit
        self._square_sums = square_sums

    def value(self, i: int) -> Any:
        """Return gradient number `i` with everything pending applied, in at least float32."""
        gradient = self.tensors[i]
        if isinstance(gradient, RowGradient) and gradient.window is not None:
            scale = 1.0 if self.factors is None else self.factors[i]
            limit = math.inf if self.limit is None else self.limit
            return replace(gradient, window=replace(gradient.window, scale=scale, limit=limit))
        value = tf.cast(numbers_of(gradient), compute_dtype(gradient.dtype))
        if self.factors is not None:
            value = value * tf.cast(self.factors[i], value.dtype)
        if self.limit is not None:
            value = tf.clip_by_value(value, -self.limit, self.limit)
        return gradient.with_sums(value) if isinstance(gradient, RowGradient) else value

    def _without_limit(self) -> PendingGradients:
        if self.limit is None:
            return self
        return PendingGradients([self.value(i) for i in range(len(self.tensors))], self._square_sums)

    def clip_values(self, limit: float) -> PendingGradients:
        resolved = self._without_limit()
        return PendingGradients(resolved.tensors, self._square_sums, resolved.factors, limit)

    def squared_norms(self) -> list[Any]:
        resolved = self._without_limit()
        squares = self._square_sums(resolved.tensors)
        if resolved.factors is None:
            return squares
        wide = [tf.cast(factor, tf.float64) for factor in resolved.factors]
        return [square * factor * factor for square, factor in zip(squares, wide, strict=True)]

    def scale(self, factors: Sequence[Any]) -> PendingGradients:
        resolved = self._without_limit()
        factors = [tf.cast(factor, tf.float64) for factor in factors]
        if resolved.factors is not None:
            factors = [old * new for old, new in zip(resolved.factors, factors, strict=True)]
        return PendingGradients(resolved.tensors, self._square_sums, factors)

    def clip_norms(self, limit: float, is_joint: bool) -> PendingGradients:
        return by_norms(self, limit, is_joint)

    def sqrt(self, scalar: Any) -> Any:
        return tf.sqrt(scalar)

    def maximum(self, a: Any, b: Any) -> Any:
        return tf.maximum(a, b)


def _update(work: Work, members: Sequence[int], gradients: PendingGradients, program: Program) -> Any:
    """Make one op for variables of one dtype, device and learning rate."""
    tracked = [work.tracked[i] for i in members]
    goals = [target(work.slots, item) for item in tracked]
    slots = native.slot_variables(work.slots, tracked, program)
    averages = [work.slots.get(slot_layout.AVERAGE, item) for item in tracked] if work.has_averages else []
    roundings = [t.variable for t, goal in zip(tracked, goals, strict=True) if goal is not t.variable]
    lists, group = (goals, slots, averages, roundings), None
    coefficients = work.coefficients[work.rate_factors[members[0]]]
    momentum = work.ema_momentum if work.has_averages else 0.0
    limit = math.inf if gradients.limit is None else gradients.limit
    mine = [gradients.tensors[i] for i in members]
    by_row = [k for k, g in enumerate(mine) if isinstance(g, RowGradient) and g.window is None]
    gathered = [k for k, g in enumerate(mine) if _has_window(g)]
    decays = [work.decay_factors[i] for i in members]
    active = [work.active[i] for i in members]
    others = native.others(work, members)
    on_mesh, op = tracked[0].mesh is not None, library.ops().dtopt_step
    if on_mesh:
        group, together = native.numbers_on_mesh(work.only(members), program)
        lists, others = ([item.variable for item in tracked], [], [], []), []
        op = library.ops().dtopt_step_together if together else op
    numbers = {
        "scalars": [coefficients[name] for name in program.scalars],
        "scales": [] if gradients.factors is None else [gradients.factors[i] for i in members],
        "decays": [1.0 if d is None else d for d in decays] if any(d is not None for d in decays) else [],
        "options": [limit, momentum, 1.0 - momentum],
    }
    with place_of_scalars(tracked):
        inputs = {name: float64s(values) for name, values in numbers.items()}
        if packing := native.packing_numbers(work, members, program):
            key = float64s([native.NO_NOISE if work.key is None else work.key])
            inputs["options"] = tf.concat([inputs["options"], key, float64s(packing)], 0)
        inputs |= {
            "group": group if on_mesh else tf.constant([], tf.int64),
            **window_arguments([mine[k] for k in gathered]),
        }
        inputs["active"] = tf.stack(active) if any(a is not True for a in active) else tf.constant([], tf.bool)
        inputs["overwrite"] = tf.convert_to_tensor(work.overwrite)
    with nullcontext() if on_mesh else tf.device(at_hand(goals[0]).device):
        return op(
            **{name: _handles(tensors) for name, tensors in zip(LISTS, lists, strict=True)},
            **inputs,
            gradients=[*map(numbers_of, mine), *(mine[k].powers for k in by_row if mine[k].powers is not None)],
            rows=[mine[k].rows for k in by_row],
            control=tf.constant([], tf.float64) if work.control is None else work.control,
            T=goals[0].dtype,
            rule=program.name,
            shapes=program.shapes,
            passes=program.passes,
            powers=program.powers,
            scalars_of_all=len(program.scalars),
            identity_at_zero=program.is_identity_at_zero,
            sparse=by_row,
            others=others,
            totals=[mine[k].shape[0] for k in by_row if not mine[k].is_summed],
            gathered=gathered,
        )


def _handles(variables: Sequence[Any]) -> list[Any]:
    return [at_hand(variable).handle for variable in variables]


def _rest(work: Work, rest: Sequence[int], gradients: PendingGradients) -> Work:
    """Return the step of the other variables, whose gradients are scaled and clipped already."""
    gradients_ = [_rounded(gradients.value(i), work.gradients[i].dtype) for i in rest]
    return replace(work.only(rest), gradients=gradients_, clip=GradientsClipOption(), loss_scale=None)


def _rounded(gradient: Any, dtype: tf.DType) -> Any:
    """Round as `work.scaled` does: float16 stays float32, which does not underflow."""
    return gradient if dtype == tf.float16 else tf.cast(gradient, dtype)
