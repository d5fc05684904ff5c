"""One op call of dtopt's own kernel for all shards that it can update, on all devices: see `optim/native`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from optim import slot_layout
from optim.executors.devices import wait_for_pending
from optim.executors.kernels import call
from optim.executors.plan import Selection, Shard
from optim.executors.work import Work
from optim.master_copies import target
from optim.native.direct import Held
from optim.native.library import status
from optim.native.programs import Program, program_for
from optim.rule import Rule
from optim.variables import SlotTable, Tracked

if TYPE_CHECKING:
    from optim.executors.shard_gradients import ShardGradients

Placed = dict[str, list[tuple[int, Shard]]]
"""By device: shards, each with the position of its variable in the step."""
DTYPES = (tf.float32, tf.float64, tf.bfloat16, tf.float16)


def why_not(rule: Rule | None, tracked: Tracked, slots: SlotTable) -> str:
    """Why the kernel cannot update a variable; empty if it can."""
    program = program_for(rule)
    if program is None:
        return f"it does not have {type(rule).__name__}"
    dtype = target(slots, tracked).dtype
    if any(slot.dtype != dtype for slot in slots.of(tracked, program.slots).values()):
        return f"a slot of {tracked} has another dtype"
    if dtype == tf.float16 and slots.find(slot_layout.ACCUMULATED_GRADIENT, tracked) is not None:
        return f"accumulated gradients of {tracked} stay float32, where float16 would underflow"
    return why_not_here(tracked)


def why_not_here(tracked: Tracked) -> str:
    """Why the kernel can do nothing with gradients of a variable; empty if it can add up their squares."""
    dtype = tracked.variable.dtype
    if dtype not in DTYPES:
        return f"it does not compute in {dtype.name}"
    device = tracked.variable.device if tracked.mesh is None else tracked.mesh.device_type()
    if device and "CPU" not in device.upper():
        return f"it runs on CPU devices, {tracked} is on {device}"
    return "" if status().available else status().reason


def square_sums(held: Held, sources: Sequence[int], dtype: tf.DType) -> list[float]:
    """The sum of squares of each of the tensors at `sources`, all of one dtype, added up in float64."""
    where = tf.constant(sources, tf.int64, [len(sources)])
    found = call("DtoptSquares", tf.constant(held.number, tf.int64), where, "T", dtype.as_datatype_enum)
    sums: list[float] = found.numpy().tolist()
    return sums


def scalar_groups(handles: Sequence[Any]) -> list[tuple[Any, int]]:
    """For each handle of a variable, one per device, a group of one and its number; none if a device is no CPU."""
    if any("CPU" not in handle.device.upper() for handle in handles):
        return []
    groups = []
    for handle in handles:
        with tf.device(handle.device):
            group, number = call("DtoptGroup", [handle], [], [], _vector([]), _vector([]))
            groups.append((group, int(number.numpy())))
    return groups


class Batch:
    """Shards of one dtype and learning rate on all devices, looked up by the kernel once."""

    def __init__(
        self, program: Program, by_device: Placed, rate_factor: float, has_averages: bool, offsets: Sequence[int]
    ):
        placed = [at for on_device in by_device.values() for at in on_device]
        self.program = program
        self.rate_factor = rate_factor
        self.positions = [position for position, _ in placed]
        """Of the variables in the step."""
        self.dtype = placed[0][1].dtype
        groups = []
        for device, on_device in by_device.items():
            with tf.device(device):
                groups.append(_group(program, on_device, has_averages, offsets))
        links = _links([shard for _, shard in placed])
        with tf.device(next(iter(by_device))):
            self.group = call("DtoptJoin", _vector([number for _, number in groups]), _vector(links))


def _group(program: Program, placed: Sequence[tuple[int, Shard]], has_averages: bool, offsets: Sequence[int]) -> Any:
    """A group of the shards on one device, and its number."""
    shards = [shard for _, shard in placed]
    slots = [s.slots[name] for name in program.slots for s in shards]
    averages = [s.slots[slot_layout.AVERAGE] for s in shards] if has_averages else []
    boxes = _vector([n for i, s in enumerate(shards) if s.box is not None for n in (i, *s.box.runs())])
    sources = _vector([offsets[i] + shard.part for i, shard in placed])
    group, number = call("DtoptGroup", [s.variable for s in shards], slots, averages, boxes, sources)
    return group, int(number.numpy())


def _links(shards: Sequence[Shard]) -> list[int]:
    """Where else the values that are computed for a part of a shard are to be written: pairs of positions."""
    at = {id(shard): position for position, shard in enumerate(shards)}
    return [n for i, shard in enumerate(shards) for other in shard.partners for n in (i, at[id(other)])]


def _vector(numbers: Sequence[int]) -> Any:
    return tf.constant(numbers, tf.int64, [len(numbers)])


class Batches:
    """What the kernel updates, and the `rest`, which it cannot, by device."""

    def __init__(self, work: Work, selection: Selection):
        program = program_for(work.rule)
        self.rest: dict[str, list[tuple[int, Shard]]] = {}
        groups: dict[tuple[Any, float], Placed] = {}
        for device, placed in selection.by_device.items():
            for i, shard in placed:
                if program is None or why_not(work.rule, shard.tracked, work.slots):
                    self.rest.setdefault(device, []).append((i, shard))
                else:  # a variable's factor of the learning rate never changes
                    alike = groups.setdefault((shard.dtype, work.rate_factors[i]), {})
                    alike.setdefault(device, []).append((i, shard))
        averages, offsets = work.ema.use_ema, selection.offsets
        self.batches = [Batch(program, g, f, averages, offsets) for (_, f), g in groups.items() if program is not None]
        self._kept: dict[str, tuple[list[float], Any]] = {}

    def numbers(self, name: str, values: list[float]) -> Any:
        """A float64 vector; one that did not change is not made again."""
        kept = self._kept.get(name)
        if kept is None or kept[0] != values:
            kept = self._kept[name] = (values, tf.constant(values, tf.float64, [len(values)]))
        return kept[1]


def arrange(work: Work, selection: Selection) -> Batches:
    """Made anew only when a step differs from the one before in more than its numbers."""
    key = (work.ema.use_ema, status().available)
    if selection.batches is None or selection.batches[0] != key:
        selection.batches = (key, Batches(work, selection))
    return selection.batches[1]


def step(work: Work, batches: Batches, gradients: ShardGradients) -> None:
    """Update all batches."""
    if not batches.batches:
        return
    limit = math.inf if gradients.limit is None else gradients.limit
    momentum = work.ema.ema_momentum if work.ema.use_ema else 0.0
    options = batches.numbers("options", [limit, momentum, 1.0 - momentum])
    factors = gradients.factors
    held = tf.constant(gradients.held.number, tf.int64)
    for batch in batches.batches:
        decays = [work.decay_factors[i] for i in batch.positions]
        has_decays = any(d is not None for d in decays)
        kind = f"{batch.dtype.name} {batch.rate_factor}"
        call(
            "DtoptUpdate",
            batch.group,
            held,
            batches.numbers(f"scalars {kind}", batch.program.scalars(work.coefficients[batch.rate_factor])),
            batches.numbers(f"scales {kind}", [factors[i] for i in batch.positions] if factors else []),
            batches.numbers(f"decays {kind}", [1.0 if d is None else d for d in decays] if has_decays else []),
            options,
            "T",
            batch.dtype.as_datatype_enum,
            "rule",
            batch.program.name,
            "overwrite",
            bool(work.overwrite),
        )
    wait_for_pending()  # in asynchronous mode the ops are yet to run, and need what is held
