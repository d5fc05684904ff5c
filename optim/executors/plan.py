"""The shards of all variables and slots by device, unpacked once, and those that one step updates."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim import slot_layout
from optim.algorithm import Group
from optim.devices import handles_of
from optim.layouts.placement import is_finer, layout_of
from optim.layouts.shard_slices import Box, box_of, partners, primary_parts, region_of
from optim.precision import constant
from optim.rule import Rule
from optim.state.slots import SlotTable
from optim.state.tracked import Tracked


class Shard:
    """The part of one model variable and of its slots on one device, as resource handles."""

    def __init__(
        self,
        tracked: Tracked,
        variable: Any,
        slots: Mapping[str, Any],
        part: int = 0,
        primary: bool = True,
        box: Box | None = None,
        region: tuple[int, int, int] | None = None,
    ):
        self.tracked = tracked
        master = slots.get(slot_layout.MASTER)
        self.variable = variable if master is None else master
        """The variable that the rule updates: the model's variable, or its master copy."""
        self.dtype = tracked.variable.dtype if master is None else tf.float32
        self.rounding = None if master is None else variable
        """The model's variable, if it is the rounding of its master copy."""
        self.slots = slots
        self.part = part
        """Position of the device in the mesh of the variable."""
        self.primary = primary
        """Whether this device's copy counts in norms: exactly one of the replicas of each shard does."""
        self.box = box
        """The part that has slots and that the device updates, if it is not the whole shard."""
        self.region = region
        """Position of the box in the whole table, as `region_of` returns it."""
        self.partners: list[Shard] = []
        """If there is a box: the same shard of the variable on the devices that update the rest of it."""


class DeviceScalars:
    """Scalar tensors on one device; an unchanged value is not sent again."""

    def __init__(self) -> None:
        self._cache: dict[tuple[str, Group, str], tuple[float, Any]] = {}

    def tensors(self, values: Mapping[str, float], rate_factor: Group, dtype: tf.DType) -> dict[str, Any]:
        return {name: self._tensor(name, value, rate_factor, dtype) for name, value in values.items()}

    def _tensor(self, name: str, value: float, rate_factor: Group, dtype: tf.DType) -> Any:
        key = (name, rate_factor, dtype.name)
        cached = self._cache.get(key)
        if cached is None or cached[0] != value:
            cached = self._cache[key] = (value, constant(value, dtype))
        return cached[1]


class Plan:
    """Handles of all tracked variables and slots; `rules` update the variables."""

    def __init__(self, rules: Sequence[Rule | None], tracked: Sequence[Tracked], slots: SlotTable):
        pairs = zip(rules, tracked, strict=True)
        self._shards = {item.index: _shards(rule, item, slots) for rule, item in pairs}
        self.devices = list(dict.fromkeys(s.variable.device for shards in self._shards.values() for s in shards))
        self.scalars = {device: DeviceScalars() for device in self.devices}
        self.compiled: dict[tuple[Any, ...], Any] = {}
        self._selection: tuple[Sequence[Tracked], Selection] | None = None

    def shards(self, tracked: Tracked) -> Sequence[Shard]:
        """Return the shards of a variable, by local device."""
        return self._shards[tracked.index]

    def is_by_rows(self, tracked: Tracked) -> bool:
        """Whether the parts of a variable that devices update are some columns of some rows."""
        return all(shard.region is not None for shard in self._shards[tracked.index])

    def selection(self, tracked: Sequence[Tracked]) -> Selection:
        """Return the shards of these variables; a new selection is made only if the variables differ from the step
        before."""
        if self._selection is None or (self._selection[0] is not tracked and self._selection[0] != tracked):
            self._selection = (tracked, Selection([self._shards[item.index] for item in tracked]))
        return self._selection[1]


class Selection:
    """The shards of the variables of one step, by device, each with the position of its variable in the step."""

    def __init__(self, by_variable: Sequence[Sequence[Shard]]):
        self.by_device: dict[str, list[tuple[int, Shard]]] = {}
        for position, shards in enumerate(by_variable):
            for shard in shards:
                self.by_device.setdefault(shard.variable.device, []).append((position, shard))
        self.devices = list(self.by_device)
        self.counts = [len(shards) for shards in by_variable]
        self.offsets = [0, *itertools.accumulate(self.counts)][:-1]
        """Number of the first shard of each variable, if all shards are counted."""
        self.batches: tuple[Any, Any] | None = None
        """The result of `native.arrange`, and the steps that it is for."""


def _shards(rule: Rule | None, item: Tracked, slots: SlotTable) -> list[Shard]:
    slot_handles = {n: handles_of(v) for n in slots.names if (v := slots.find(n, item)) is not None}
    primary = primary_parts(item.layout)
    boxes, families = _boxes(rule, item, slots)
    places: Any = [{}] if item.layout is None else item.layout.mesh.local_device_locations()
    regions = [region_of(item.shape or (), item.layout, box, place) for box, place in zip(boxes, places, strict=True)]
    shards = [
        Shard(item, handle, {n: parts[k] for n, parts in slot_handles.items()}, k, primary[k], boxes[k], regions[k])
        for k, handle in enumerate(handles_of(item.variable))
    ]
    for shard, family in zip(shards, families, strict=True):
        shard.partners = [shards[k] for k in family]
    return shards


def step_layout(rule: Rule | None, item: Tracked, slots: SlotTable) -> dtensor.Layout | None:
    """Return the layout that divides the updates among devices.

    It is the layout of the slots, which are all placed in the same way. For an elementwise rule without slots it is
    that of the sum of gradients, so that each device has what it updates.
    """
    has_parts = rule is not None and rule.elementwise
    total = slots.find(slot_layout.ACCUMULATED_GRADIENT, item) if has_parts else None
    others = (n for n in slots.names if n != slot_layout.ACCUMULATED_GRADIENT)
    slot_layouts = (layout_of(v) for n in others if (v := slots.find(n, item)) is not None)
    layouts = [layout for layout in slot_layouts if layout is not None and layout.rank == item.variable.shape.rank]
    if not layouts and total is not None and not _why_not_further(layout_of(total), item):
        return layout_of(total)
    return next(iter(layouts), item.layout)


def why_not_in_shards(rule: Rule, item: Tracked, slots: SlotTable) -> str:
    """Explain why the slots' placement prevents updates of single shards of a variable; empty if it does not."""
    names = [*(slot.name for slot in rule.slots), slot_layout.AVERAGE, slot_layout.MASTER]
    placed = {name: layout_of(slot) for name, slot in slots.of(item, names).items()}
    odd = next((name for name, layout in placed.items() if layout != item.layout), None)
    if odd is None:
        return ""
    where = f"slot {odd!r} of {item} is placed differently from the variable (slot_placement)"
    if any(other != placed[odd] for other in placed.values()):
        return f"{where}, and its slots do not all have the same placement"
    why = _why_not_further(placed[odd], item)
    return why and f"{where}, and {why}"


def _why_not_further(layout: dtensor.Layout | None, item: Tracked) -> str:
    """Explain why devices cannot update their parts of a variable with this layout; empty if they can."""
    if layout is None or item.layout is None or not is_finer(layout, item.layout):
        return "not only sharded further"
    return "the mesh has several clients" if dtensor.num_clients() > 1 else ""


def _boxes(rule: Rule | None, item: Tracked, slots: SlotTable) -> tuple[list[Box | None], list[list[int]]]:
    """Return the boxes by local device. All slots of a step have the same placement, which was checked."""
    layout, placed = item.layout, step_layout(rule, item, slots)
    if layout is None or placed is None:
        return [None], [[]]
    places = layout.mesh.local_device_locations()
    shape = item.variable.shape.as_list()
    if placed == layout:
        return [None] * len(places), [[]] * len(places)
    boxes = [box_of(shape, layout, placed, place) for place in places]
    return boxes, partners(layout, placed) if boxes[0] is not None else [[]] * len(places)
