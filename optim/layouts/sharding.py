"""The mesh axis of each dim of a slot: pure arithmetic on names and sizes, without TensorFlow.

`placement` makes layouts of it, and `dtopt bench plan` predicts bytes with it, so that the two always agree. A *spec*
is the name of a mesh axis or `UNSHARDED`, one for each dim of a tensor, as in `dtensor.Layout.sharding_specs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

UNSHARDED = "unsharded"
"""DTensor's own value, `dtensor.UNSHARDED`."""


def zero1_specs(specs: Sequence[str], axes: Mapping[str, int], shape: Sequence[int]) -> list[str]:
    """Return `specs` with every mesh axis that they leave unused put on the largest free dim that its size divides.

    An axis that divides no free dim stays unused: DTensor cannot shard unevenly, and gathers no empty parts.

    Args:
      specs: one for each dim.
      axes: size by name of every mesh axis, in the order of the mesh.
      shape: sizes of the dims.
    """
    used = [() if spec == UNSHARDED else (spec,) for spec in specs]
    axes_of_dims = zero1_axes(used, axes, shape, most=1)
    return [new[0] if new else UNSHARDED for new in axes_of_dims]


def zero1_axes(
    used: Sequence[Sequence[str]], axes: Mapping[str, int], shape: Sequence[int], most: int | None = None
) -> list[tuple[str, ...]]:
    """Return the axes of each dim, with every unused axis put on the largest dim that its size divides.

    Whole dims come before divided dims; the size of a divided dim is that of its part on a device.

    Args:
      used: the axes of each dim. axes, shape: as for `zero1_specs`.
      most: how many axes a dim may have; None for any number.
    """
    if 0 in shape:
        return [tuple(dim) for dim in used]
    dims = [[axis for axis in dim if axes.get(axis) != 1] for dim in used]  # a single part is the whole
    for axis, size in axes.items():
        if size == 1 or any(axis in dim for dim in dims):
            continue
        parts = [n // prod(axes.get(name, 1) for name in dim) for n, dim in zip(shape, dims, strict=True)]
        free = [d for d, dim in enumerate(dims) if (most is None or len(dim) < most) and parts[d] % size == 0]
        if free:
            dims[max(free, key=lambda d: (not dims[d], parts[d], -d))].append(axis)
    return [tuple(new or old) for old, new in zip(used, dims, strict=True)]


def local_shape(shape: Sequence[int], specs: Sequence[str], axes: Mapping[str, int]) -> list[int]:
    """Return the shape of one device's part of a tensor."""
    return [size if axis == UNSHARDED else size // axes[axis] for size, axis in zip(shape, specs, strict=True)]


def only_dims(specs: Sequence[Any], dims: Sequence[int], whole: Any) -> list[Any]:
    """Return the specs of the dims that remain; a dim that remains twice is divided the first time only.

    Args:
      whole: the spec of a dim that is not divided.
    """
    return [whole if dim in dims[:place] else specs[dim] for place, dim in enumerate(dims)]
