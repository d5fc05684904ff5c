"""The part of a variable's shard that a device updates if the slots are sharded further than the variable (ZeRO-1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorflow.experimental import dtensor

from optim.layouts.placement import local_shape


@dataclass(frozen=True)
class Box:
    """The elements from `begin` to `end` (exclusive), dim by dim, of a shard of shape `shape`."""

    shape: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    def runs(self) -> list[int]:
        """Return the box as runs of elements without a gap, in row-major order, in the form of `DtoptGroup`.

        These are the offset of the first run, the length of each, the number of levels, and their (count, stride), the
        outermost first.
        """
        strides = [math.prod(self.shape[dim + 1 :]) for dim in range(len(self.shape))]
        sizes = [end - begin for begin, end in zip(self.begin, self.end, strict=True)]
        first = sum(begin * stride for begin, stride in zip(self.begin, strides, strict=True))
        dim, run = len(sizes) - 1, 1
        while dim >= 0 and sizes[dim] == self.shape[dim]:  # whole dims at the end are contiguous
            run *= sizes[dim]
            dim -= 1
        if dim >= 0:
            run *= sizes[dim]
        levels = [(size, stride) for size, stride in zip(sizes[: max(dim, 0)], strides, strict=False) if size > 1]
        return [first, run, len(levels), *(number for level in levels for number in level)]


def box_of(
    shape: Sequence[int], layout: dtensor.Layout, slot_layout: dtensor.Layout, place: Mapping[str, int]
) -> Box | None:
    """Return the part of the slots on the device at `place` (coordinate by mesh axis) within its shard of the variable.

    None if the slots are sharded like the variable, or are empty. `slot_layout` shards `layout` further.
    """
    if slot_layout == layout or not math.prod(shape):
        return None
    local, part = local_shape(shape, layout), local_shape(shape, slot_layout)
    begin = [
        place[axis] * size if size != whole else 0
        for whole, size, axis in zip(local, part, slot_layout.sharding_specs, strict=True)
    ]
    return Box(tuple(local), tuple(begin), tuple(b + size for b, size in zip(begin, part, strict=True)))


def region_of(
    shape: Sequence[int], layout: dtensor.Layout | None, box: Box | None, place: Mapping[str, int]
) -> tuple[int, int, int] | None:
    """Return the position in the whole table of what the device at `place` updates.

    Returns: its first row, its first column, and the number of columns of the table; a row's elements count as columns.
    None if it is not some columns of some rows: a dim but the first two is divided, or there are no dims.
    """
    if not shape or not math.prod(shape):
        return None
    local = list(shape) if layout is None else local_shape(shape, layout)
    begin = [0] * len(shape) if box is None else list(box.begin)
    if layout is not None:
        begin = [
            at + (place[axis] * size if size != whole else 0)
            for at, whole, size, axis in zip(begin, shape, local, layout.sharding_specs, strict=True)
        ]
    sizes = local if box is None else [b - a for a, b in zip(box.begin, box.end, strict=True)]
    if sizes[2:] != list(shape[2:]):
        return None
    return begin[0], begin[1] * math.prod(shape[2:]) if len(shape) > 1 else 0, math.prod(shape[1:])


def partners(layout: dtensor.Layout, slot_layout: dtensor.Layout) -> list[list[int]]:
    """Return for each local device, by position, the partners with the same shard of the variable and other parts of
    its slots.

    Partners differ only along the axes that only the slots use.
    """
    extra = set(slot_layout.sharding_specs) - set(layout.sharding_specs)
    places = layout.mesh.local_device_locations()
    families: dict[tuple[int, ...], list[int]] = {}
    keys = [tuple(at for axis, at in sorted(place.items()) if axis not in extra) for place in places]
    for position, key in enumerate(keys):
        families.setdefault(key, []).append(position)
    return [[other for other in families[key] if other != position] for position, key in enumerate(keys)]


def primary_parts(layout: dtensor.Layout | None) -> list[bool]:
    """Return for each local device whether its part counts in sums: exactly one of the replicas of each part does."""
    if layout is None:
        return [True]
    mesh = layout.mesh
    unused = [axis for axis in mesh.dim_names if axis not in layout.sharding_specs]
    return [all(place[axis] == 0 for axis in unused) for place in mesh.local_device_locations()]
