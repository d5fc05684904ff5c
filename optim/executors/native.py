"""One op call of dtopt's own kernel for all shards of a device that it can update: see `optim/native`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from optim import slot_layout
from optim.executors.kernels import call
from optim.executors.plan import Selection, Shard
from optim.executors.work import Work
from optim.master_copies import target
from optim.native.library import status
from optim.native.programs import Program, program_for
from optim.rule import Rule
from optim.variables import SlotTable, Tracked

if TYPE_CHECKING:
    from optim.executors.shard_gradients import ShardGradients

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


def square_sums(tensors: Sequence[Any]) -> list[float]:
    """The sum of squares of each tensor, all of one dtype and on the device that this runs on, added up in float64."""
    sums: list[float] = call("DtoptSquares", tensors).numpy().tolist()
    return sums


class Batch:
    """Shards of one dtype and learning rate on one device, looked up by the kernel once. Made on that device."""

    def __init__(self, program: Program, placed: Sequence[tuple[int, Shard]], rate_factor: float, has_averages: bool):
        self.program = program
        self.rate_factor = rate_factor
        self.positions = [position for position, _ in placed]
        """Of the variables in the step."""
        self.shards = [shard for _, shard in placed]
        self.dtype = self.shards[0].dtype
        slots = [s.slots[name] for name in program.slots for s in self.shards]
        averages = [s.slots[slot_layout.AVERAGE] for s in self.shards] if has_averages else []
        boxes = [n for i, s in enumerate(self.shards) if s.box is not None for n in (i, *s.box.runs())]
        self.is_partial = bool(boxes)
        """Whether this device updates only a part of some shard, and the others the rest."""
        vector = tf.constant(boxes, tf.int64, [len(boxes)])
        self.group, self._number = call("DtoptGroup", [s.variable for s in self.shards], slots, averages, vector)

    def places(self) -> dict[int, tuple[int, int]]:
        """By `id` of a shard: the number that links know this batch by, and where in it the shard is."""
        number = int(self._number.numpy())
        return {id(shard): (number, i) for i, shard in enumerate(self.shards)}

    def link(self, places: Mapping[int, tuple[int, int]]) -> None:
        """Tell the kernel where else the values that this batch computes are to be written."""
        links = [n for i, s in enumerate(self.shards) for other in s.partners for n in (i, *places[id(other)])]
        call("DtoptLink", self.group, tf.constant(links, tf.int64, [len(links)]))


class Batches:
    """What the kernel updates on one device, and the `rest`, which it cannot."""

    def __init__(self, work: Work, placed: Sequence[tuple[int, Shard]]):
        program = program_for(work.rule)
        fits = [program is not None and not why_not(work.rule, shard.tracked, work.slots) for _, shard in placed]
        self.rest = [at for at, fit in zip(placed, fits, strict=True) if not fit]
        groups: dict[tuple[Any, float], list[tuple[int, Shard]]] = {}
        for at, fit in zip(placed, fits, strict=True):
            if fit:  # a variable's factor of the learning rate never changes
                groups.setdefault((at[1].dtype, work.rate_factors[at[0]]), []).append(at)
        averages = work.ema.use_ema
        self.batches = [Batch(program, b, f, averages) for (_, f), b in groups.items() if program is not None]
        self._kept: dict[str, tuple[list[float], Any]] = {}

    def numbers(self, name: str, values: list[float]) -> Any:
        """A float64 vector on the device; one that did not change is not sent again."""
        kept = self._kept.get(name)
        if kept is None or kept[0] != values:
            kept = self._kept[name] = (values, tf.constant(values, tf.float64, [len(values)]))
        return kept[1]


def arrange(work: Work, selection: Selection) -> Mapping[str, Batches]:
    """Batches by device, made anew only when a step differs from the one before in more than its numbers."""
    key = (work.ema.use_ema, status().available)
    if selection.batches is not None and selection.batches[0] == key:
        return selection.batches[1]
    found = {}
    for device, placed in selection.by_device.items():
        with tf.device(device):
            found[device] = Batches(work, placed)
    partial = [(device, batch) for device, b in found.items() for batch in b.batches if batch.is_partial]
    places = {shard: place for _, batch in partial for shard, place in batch.places().items()}
    for device, batch in partial:
        with tf.device(device):
            batch.link(places)
    selection.batches = (key, found)
    return found


def prepare(arranged: Mapping[str, Batches]) -> None:
    """Before `step` on any device: variables that several devices are about to write get buffers of their own."""
    for device, batches in arranged.items():
        for batch in batches.batches:
            if batch.is_partial:
                with tf.device(device):
                    call("DtoptOwn", batch.group)


def step(work: Work, batches: Batches, gradients: ShardGradients) -> None:
    """Update all batches of the device that this runs on."""
    limit = math.inf if gradients.limit is None else gradients.limit
    momentum = work.ema.ema_momentum if work.ema.use_ema else 0.0
    options = batches.numbers("options", [limit, momentum, 1.0 - momentum])
    parts, factors = gradients.parts, gradients.factors
    for batch in batches.batches:
        decays = [work.decay_factors[i] for i in batch.positions]
        has_decays = any(d is not None for d in decays)
        kind = f"{batch.dtype.name} {batch.rate_factor}"
        call(
            "DtoptUpdate",
            batch.group,
            [parts[i][shard.part] for i, shard in zip(batch.positions, batch.shards, strict=True)],
            batches.numbers(f"scalars {kind}", batch.program.scalars(work.coefficients[batch.rate_factor])),
            batches.numbers(f"scales {kind}", [factors[i] for i in batch.positions] if factors else []),
            batches.numbers(f"decays {kind}", [1.0 if d is None else d for d in decays] if has_decays else []),
            options,
            "rule",
            batch.program.name,
            "overwrite",
            bool(work.overwrite),
        )
