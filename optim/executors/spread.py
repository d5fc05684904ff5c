"""Eager steps on meshes for rules that need sums over variables: ops on the part of each device, sums added up here.

DTensor adds up by all-reduces. For each of them TensorFlow keeps a record for ever, some 400 bytes a device
(`instance_table_` of tensorflow/core/common_runtime/collective_param_resolver_local.cc, which has the step in its key;
TF 2.21). This module uses no all-reduce, and no DTensor function for each variable.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim import slot_layout
from optim.devices import wait_for_pending
from optim.executors import native, on_mesh, shard_step
from optim.executors.plan import Plan, Shard, step_layout
from optim.executors.work import Work, averaged
from optim.layouts.placement import is_finer, layout_of, local_shape, only_dims, relayout
from optim.layouts.sharding import UNSHARDED
from optim.namespace import XP
from optim.precision import cast_scalar, cast_scalars, compute_dtype, constant
from optim.rule import Rule
from optim.state.slots import SlotTable
from optim.state.tracked import Tracked


@dataclass(frozen=True)
class Home:
    """The devices of a mesh, and for each its coordinate by mesh axis."""

    mesh: dtensor.Mesh
    devices: Sequence[str]
    places: Sequence[Mapping[str, int]]

    @classmethod
    def of(cls, mesh: dtensor.Mesh) -> Home:
        return cls(mesh, mesh.local_devices(), mesh.local_device_locations())

    def alike(self, devices: Iterable[int], axes: set[str]) -> list[list[int]]:
        """Group devices, given by position, that have the same coordinates along these axes."""
        families: dict[Any, list[int]] = {}
        for k in devices:
            families.setdefault(tuple(at for axis, at in self.places[k].items() if axis in axes), []).append(k)
        return list(families.values())


class Spread:
    """An array as its parts on the devices, for a rule to compute with.

    `specs`: the mesh axis of each dim, as in `dtensor.Layout.sharding_specs`.
    """

    def __init__(self, home: Home, parts: Sequence[Any], specs: Sequence[str]):
        self.home = home
        self.parts = parts
        self.specs = tuple(specs)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole."""
        sizes = [1 if spec == UNSHARDED else self.home.mesh.dim_size(spec) for spec in self.specs]
        return tuple(n * size for n, size in zip(self.parts[0].shape.as_list(), sizes, strict=True))

    @property
    def dtype(self) -> tf.DType:
        return self.parts[0].dtype

    def map(self, function: Callable[..., Any], *others: Sequence[Any]) -> Spread:
        """Return the same array after `function`, which gets each part, and the parts of `others` on its device."""
        parts = []
        for device, *arguments in zip(self.home.devices, self.parts, *others, strict=True):
            with tf.device(device):
                parts.append(function(*arguments))
        return Spread(self.home, parts, self.specs)


def _apply(function: Callable[..., Any], *args: Any) -> Any:
    """Return an elementwise function for arrays, some of which are `Spread`."""
    spread = [arg for arg in args if isinstance(arg, Spread)]
    if not spread:
        return function(*args)
    home, rank = spread[0].home, max(len(arg.specs) for arg in spread)
    padded = [(*[UNSHARDED] * (rank - len(arg.specs)), *arg.specs) for arg in spread]
    specs = [next((spec for spec in dim if spec != UNSHARDED), UNSHARDED) for dim in zip(*padded, strict=True)]
    columns = [arg.parts if isinstance(arg, Spread) else [arg] * len(home.devices) for arg in args]
    return Spread(home, Spread(home, columns[0], specs).map(function, *columns[1:]).parts, specs)


def _method(function: Callable[..., Any], is_reflected: bool = False) -> Callable[..., Any]:
    if is_reflected:
        return lambda self, other: _apply(function, other, self)
    return lambda self, *others: _apply(function, self, *others)


for _name in ("add", "sub", "mul", "truediv", "pow"):
    setattr(Spread, f"__{_name}__", _method(getattr(operator, _name)))
    setattr(Spread, f"__r{_name}__", _method(getattr(operator, _name), is_reflected=True))
for _name in ("neg", "abs", "lt", "le", "gt", "ge", "eq", "ne", "and_", "or_", "invert"):
    setattr(Spread, f"__{_name.rstrip('_')}__", _method(getattr(operator, _name)))


class _Namespace:
    """The `xp` of a rule that computes with `Spread`: the functions that have a kernel."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(XP, name)
        return lambda *args: _apply(function, *args)

    def reduce_sum(self, x: Spread, axis: Any = None, keepdims: bool = False) -> Spread:
        over = _dims(x, axis)
        sums = x.map(lambda part: tf.reduce_sum(part, sorted(over), keepdims))
        specs = [UNSHARDED if d in over else spec for d, spec in enumerate(x.specs) if keepdims or d not in over]
        parts, axes = list(sums.parts), {x.specs[dim] for dim in over} - {UNSHARDED}
        for family in x.home.alike(range(len(parts)), set(specs)):  # one sum for all, or replicas would drift apart
            firsts = [replicas[0] for replicas in x.home.alike(family, axes)]
            total = tf.cast(tf.add_n([tf.cast(parts[k], tf.float64) for k in firsts]), x.dtype)
            for k in family:
                parts[k] = total
        return Spread(x.home, parts, specs)

    def reduce_mean(self, x: Spread, axis: Any = None, keepdims: bool = False) -> Spread:
        total = self.reduce_sum(x, axis, keepdims)
        count = math.prod(x.shape[dim] for dim in _dims(x, axis))
        return total.map(lambda part: part / constant(count, part.dtype))

    def expand_dims(self, x: Spread, axis: int) -> Spread:
        at = axis % (len(x.specs) + 1)
        parts = x.map(lambda part: tf.expand_dims(part, at)).parts
        return Spread(x.home, parts, (*x.specs[:at], UNSHARDED, *x.specs[at:]))


def _dims(x: Spread, axis: Any) -> set[int]:
    """Return the dims that an argument `axis` names."""
    rank = len(x.specs)
    return set(range(rank)) if axis is None else {d % rank for d in ([axis] if isinstance(axis, int) else axis)}


SPREAD_XP = _Namespace()


def update_for(work: Work, i: int) -> on_mesh.Update | None:
    """Return the argument of `update` for variable number `i`, if it can run now: eagerly, on a mesh of one client."""
    rule, tracked = work.rules[i], work.tracked[i]
    if (
        not tf.executing_eagerly()
        or rule is None
        or rule.elementwise
        or tracked.layout is None
        or work.needs_metadata(i)
    ):
        return None

    def make() -> on_mesh.Update | None:
        if not _is_possible(rule, tracked, work.slots):
            return None
        return functools.partial(_update, Plan([rule], [tracked], work.slots))

    update_: on_mesh.Update | None = work.slots.cached((_update, id(rule), tracked.index), make)
    return update_


def _is_possible(rule: Rule, tracked: Tracked, slots: SlotTable) -> bool:
    """Whether a rule calls only functions that exist here, and each device has everything for its part of the
    update."""
    place, layout = step_layout(rule, tracked, slots), tracked.layout
    if place is None or layout is None or not is_finer(place, layout) or dtensor.num_clients() > 1:
        return False
    if native.program_of(rule, tracked, slots) is None:
        return False
    if place != layout and slots.find(slot_layout.MASTER, tracked) is not None:
        return False
    shape, whole = tracked.variable.shape.as_list(), tuple(range(layout.rank))
    dims = {slot.name: rule.slot_dims(slot, shape, tracked.names) for slot in rule.slots}
    variables = slots.of(tracked, [*dims, slot_layout.AVERAGE, slot_layout.MASTER])
    return all(layout_of(slot) == only_dims(place, dims.get(name, whole) or ()) for name, slot in variables.items())


def update(work: Work, i: int, gradient: Any, plan: on_mesh.Update) -> None:
    """Update variable number `i`, its slots and its average, in one function of all devices."""
    wait_for_pending()
    parts = dtensor.unpack(relayout(gradient, work.tracked[i].layout))
    step, numbers = on_mesh.traced(work, i, gradient.dtype, plan)
    step(tf.constant(numbers), parts)


def _update(plan: Plan, work: Work, i: int, gradient: Sequence[Any]) -> None:
    rule, tracked = work.rule(i), work.tracked[i]
    place = step_layout(rule, tracked, work.slots)
    assert place is not None
    assert tracked.layout is not None
    home, shards = Home.of(place.mesh), plan.shards(tracked)
    dtype = shards[0].dtype
    wide = compute_dtype(dtype)

    def spread(parts: Sequence[Any], specs: Sequence[str] = place.sharding_specs) -> Spread:
        return Spread(home, parts, specs).map(lambda part: tf.cast(part, wide))

    shape = local_shape(tracked.variable.shape.as_list(), tracked.layout)
    value = spread([_own_part(shard, _read(shard.variable, dtype, shape)) for shard in shards])
    decay = work.decay_factors[i]
    if decay is not None:
        value = _apply(operator.mul, value, cast_scalar(decay, wide))
    slots = work.slots.of(tracked, [slot.name for slot in rule.slots])
    handles = {name: [shard.slots[name] for shard in shards] for name in slots}
    old = {}
    for name, slot in slots.items():
        shape = local_shape(slot.shape.as_list(), slot.layout)
        parts = [_read(handle, slot.dtype, shape) for handle in handles[name]]
        old[name] = spread(parts, slot.layout.sharding_specs)
    own_parts = spread([_own_part(shard, part) for shard, part in zip(shards, gradient, strict=True)])
    change, new = rule.update(SPREAD_XP, value, own_parts, old, cast_scalars(work.scalars(i), wide))
    value = _apply(operator.add, value, change).map(lambda part: tf.cast(part, dtype))
    for name in new:
        _filled(new[name], old[name], slots[name].dtype).map(_assign, handles[name])
    _write(work, shards, value)


def _read(handle: Any, dtype: tf.DType, shape: Sequence[int]) -> Any:
    with tf.device(handle.device):
        return tf.ensure_shape(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype), shape)


def _assign(value: Any, handle: Any) -> None:
    with tf.device(handle.device):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _own_part(shard: Shard, part: Any) -> Any:
    """Return the part of its shard that a device updates."""
    return part if shard.box is None else tf.strided_slice(part, shard.box.begin, shard.box.end)


def _filled(value: Any, like: Spread, dtype: tf.DType) -> Spread:
    """Return a rule's new slot in its dtype and shape: a rule may return one number for all elements."""
    parts_ = value.parts if isinstance(value, Spread) else [value] * len(like.parts)
    return like.map(lambda part, new: tf.broadcast_to(tf.cast(new, dtype), part.shape), parts_)


def _write(work: Work, shards: Sequence[Shard], value: Spread) -> None:
    """Update the average; write a variable's new value, and its rounding, to all devices that have it."""
    if work.has_averages:
        handles = [shard.slots[slot_layout.AVERAGE] for shard in shards]
        new = value.map(lambda x, handle: averaged(_read(handle, x.dtype, x.shape), x, work.ema_momentum), handles)
        new.map(_assign, handles)
        value = new if work.overwrite else value
    for shard, part in zip(shards, value.parts, strict=True):
        if shard.box is None:
            _assign(part, shard.variable)
        if shard.rounding is not None:
            _assign(tf.cast(part, shard.tracked.variable.dtype), shard.rounding)
        for other in (shard, *shard.partners) if shard.box is not None else ():
            with tf.device(other.variable.device):
                shard_step.write_box(other, shard.box, part)
