"""Which mesh axis each dim of a slot is sharded over: pure arithmetic on names and sizes, free of TensorFlow.

`placement` makes layouts of it, `dtopt bench plan` predicts bytes with it, so the two cannot drift apart. A
*spec* is the name of a mesh axis or `UNSHARDED`, one for each dim of a tensor, as in `dtensor.Layout.sharding_specs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

UNSHARDED = "unsharded"
"""DTensor's own word for it, `dtensor.UNSHARDED`."""


def zero1_specs(specs: Sequence[str], axes: Mapping[str, int], shape: Sequence[int]) -> list[str]:
    """`specs` with every mesh axis that they leave unused put on the largest free dim that its size divides.

    An axis that divides no free dim stays unused: DTensor cannot shard unevenly, and gathers no parts without elements.

    Args:
      specs: one for each dim.
      axes: size by name of every mesh axis, in the order of the mesh.
      shape: sizes of the dims.
    """
    if 0 in shape:
        return list(specs)
    found = [UNSHARDED if axes.get(spec) == 1 else spec for spec in specs]  # one part is the whole
    for axis, size in axes.items():
        if size == 1 or axis in found:
            continue
        free = [d for d, spec in enumerate(found) if spec == UNSHARDED and shape[d] % size == 0]
        if free:
            found[max(free, key=lambda d: (shape[d], -d))] = axis
    return [old if new == UNSHARDED else new for old, new in zip(specs, found, strict=True)]


def local_shape(shape: Sequence[int], specs: Sequence[str], axes: Mapping[str, int]) -> list[int]:
    """Shape of what one device holds of a tensor."""
    return [size if axis == UNSHARDED else size // axes[axis] for size, axis in zip(shape, specs, strict=True)]
