"""One op call of dtopt's own kernel for all shards of a device that it can update: see `optim/native`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from optim import slot_layout
from optim.executors.kernels import call
from optim.executors.work import Work
from optim.master_copies import target
from optim.native.library import status
from optim.native.programs import Program, program_for
from optim.rule import Rule
from optim.variables import SlotTable, Tracked

if TYPE_CHECKING:
    from optim.executors.local import Shard, ShardGradients

DTYPES = (tf.float32, tf.float64, tf.bfloat16)


def why_not(rule: Rule | None, tracked: Tracked, slots: SlotTable) -> str:
    """Why the kernel cannot update a variable; empty if it can."""
    program = program_for(rule)
    dtype = target(slots, tracked).dtype
    if program is None:
        return f"it does not have {type(rule).__name__}"
    if dtype not in DTYPES:
        return f"it does not compute in {dtype.name}"
    device = tracked.variable.device if tracked.mesh is None else tracked.mesh.device_type()
    if device and "CPU" not in device.upper():
        return f"it runs on CPU devices, {tracked} is on {device}"
    if any(slot.dtype != dtype for slot in slots.of(tracked, program.slots).values()):
        return f"a slot of {tracked} has another dtype"
    return "" if status().available else status().reason


class Batch:
    """Shards of one dtype and learning rate on one device, looked up by the kernel once. Made on that device."""

    def __init__(self, program: Program, shards: Sequence[Shard], rate_factor: float, has_averages: bool):
        self.program = program
        self.rate_factor = rate_factor
        self.dtype = shards[0].dtype
        self.shards = shards
        slots = [s.slots[name] for name in program.slots for s in shards]
        averages = [s.slots[slot_layout.AVERAGE] for s in shards] if has_averages else []
        self.group = call("DtoptGroup", [s.variable for s in shards], slots, averages)


class Batches:
    """The batches of one device, made anew only when other variables take part than in the step before."""

    def __init__(self) -> None:
        self._key: Any = None
        self.batches: list[Batch] = []
        self.rest: list[Shard] = []
        self._kept: dict[str, tuple[list[float], Any]] = {}

    def arrange(self, work: Work, shards: Sequence[Shard], places: Mapping[int, int]) -> None:
        """Divide `shards` into batches, and `rest` that the kernel cannot update.

        `places` maps index of a variable to place in `work`, here and in `step`. A variable's factor of the learning
        rate never changes.
        """
        key = ([s.tracked.index for s in shards], work.ema.use_ema, status().available)
        if key == self._key:
            return
        program = program_for(work.rule)
        fit = {s.tracked.index for s in shards if not why_not(work.rule, s.tracked, work.slots)}
        self.rest = [s for s in shards if s.tracked.index not in fit]
        groups: dict[tuple[Any, float], list[Shard]] = {}
        for shard in shards:
            if shard.tracked.index in fit:
                rate_factor = work.rate_factors[places[shard.tracked.index]]
                groups.setdefault((shard.dtype, rate_factor), []).append(shard)
        averages = work.ema.use_ema
        self.batches = [Batch(program, b, f, averages) for (_, f), b in groups.items() if program is not None]
        self._key = key

    def numbers(self, name: str, values: list[float]) -> Any:
        """A float64 vector on the device; one that did not change is not sent again."""
        kept = self._kept.get(name)
        if kept is None or kept[0] != values:
            kept = self._kept[name] = (values, tf.constant(values, tf.float64, [len(values)]))
        return kept[1]


def step(work: Work, batches: Batches, gradients: ShardGradients, places: Mapping[int, int]) -> None:
    """Update all batches of the device that this runs on."""
    limit = math.inf if gradients.limit is None else gradients.limit
    momentum = work.ema.ema_momentum if work.ema.use_ema else 0.0
    options = batches.numbers("options", [limit, momentum, 1.0 - momentum])
    for batch in batches.batches:
        at = [places[s.tracked.index] for s in batch.shards]
        decays = [work.decay_factors[i] for i in at]
        has_decays = any(d is not None for d in decays)
        kind = f"{batch.dtype.name} {batch.rate_factor}"
        call(
            "DtoptUpdate",
            batch.group,
            [gradients.parts[i][s.part] for i, s in zip(at, batch.shards, strict=True)],
            batches.numbers(f"scalars {kind}", batch.program.scalars(work.coefficients[batch.rate_factor])),
            batches.numbers(f"scales {kind}", [gradients.factors[i] for i in at] if gradients.factors else []),
            batches.numbers(f"decays {kind}", [1.0 if d is None else d for d in decays] if has_decays else []),
            options,
            "rule",
            batch.program.name,
            "overwrite",
            bool(work.overwrite),
        )
