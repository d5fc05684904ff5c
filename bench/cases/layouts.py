"""Meshes by axis names and sizes, and rules that lay tensors out on them.

A rule gives every dim of a tensor a mesh axis or None. DTensor shards only evenly, so an axis goes to a dim that its
size divides. If the rule's dim does not divide, the layout uses another one and adds a note.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from bench.cases.workloads import Tensor
from bench.errors import OptionError, UnknownNameError


@dataclass(frozen=True)
class MeshShape:
    """Axes of a mesh, outermost first: ((name, size), ...)."""

    axes: tuple[tuple[str, int], ...]

    @property
    def devices(self) -> int:
        return prod(size for _, size in self.axes)

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)


def parse_mesh(text: str) -> MeshShape:
    """Read `batch=2,model=2`, `2x2` (batch, model) or `2` (model). Raises: OptionError."""
    try:
        if "=" in text:
            pairs = [part.split("=") for part in text.split(",")]
            axes = tuple((name.strip(), int(size)) for name, size in pairs)
        else:
            sizes = [int(part) for part in text.lower().split("x")]
            names = {1: ("model",), 2: ("batch", "model")}[len(sizes)]
            axes = tuple(zip(names, sizes, strict=True))
    except (ValueError, KeyError):
        raise OptionError(f"cannot read the mesh {text!r}; write batch=2,model=2 or 2x2 or 2") from None
    names_ = [name for name, _ in axes]
    if not all(names_) or len(set(names_)) < len(names_) or any(size < 1 for _, size in axes):
        raise OptionError(f"mesh {text!r}: axes need different names and sizes of 1 or more")
    return MeshShape(axes)


@dataclass(frozen=True)
class Sharding:
    """One tensor on a mesh: the axis of each dim, or None; `note` names what the rule could not shard."""

    axes: tuple[str | None, ...]
    note: str | None = None


def _axis(mesh: MeshShape, preferred: str, otherwise: int) -> tuple[str, int]:
    return next((axis for axis in mesh.axes if axis[0] == preferred), mesh.axes[otherwise])


def _one_axis(tensor: Tensor, axis: tuple[str, int], preferred_dim: int) -> Sharding:
    """Split the wanted dim over one axis, or the largest other dim that its size divides, or no dim."""
    name, size = axis
    others = sorted(range(len(tensor.shape)), key=lambda dim: -tensor.shape[dim])
    for dim in (preferred_dim, *others):
        if tensor.shape[dim] % size == 0:
            split = tuple(name if d == dim else None for d in range(len(tensor.shape)))
            if dim == preferred_dim:
                return Sharding(split)
            return Sharding(split, f"{_what(tensor, preferred_dim, size)}: dim {dim} is split over {name} instead")
    return Sharding((None,) * len(tensor.shape), f"{_what(tensor, preferred_dim, size)}: every device holds it whole")


def _what(tensor: Tensor, dim: int, size: int) -> str:
    return f"{tensor.name} {tensor.shape}: dim {dim} does not divide by {size}"


def _replicated(tensor: Tensor, mesh: MeshShape) -> Sharding:
    return Sharding((None,) * len(tensor.shape))


def _megatron(tensor: Tensor, mesh: MeshShape) -> Sharding:
    """Shard for tensor parallelism over `model` (Shoeybi et al. 2019), whole on the other axes."""
    if tensor.model_dim is None:
        return _replicated(tensor, mesh)
    return _one_axis(tensor, _axis(mesh, "model", -1), tensor.model_dim)


_INTO_HEADS = ("qkv", "query", "key", "value")


def _kerashub(tensor: Tensor, mesh: MeshShape) -> Sharding:
    """Shard matrices over both axes as KerasHub's `LlamaBackbone.get_layout_map` does.

    Inputs go over `batch` and outputs over `model`. For embeddings, row-parallel kernels, and query, key and value,
    inputs go over `model` and outputs over `batch`. Vectors and kernels of convolutions stay whole.
    """
    if tensor.model_dim is None or len(tensor.shape) != 2:
        return _replicated(tensor, mesh)
    batch, model = _axis(mesh, "batch", 0), _axis(mesh, "model", -1)
    turned = tensor.model_dim == 0 or any(part in _INTO_HEADS for part in tensor.name.split("/"))
    dim_axes = (model, batch) if turned else (batch, model)
    split: list[str | None] = []
    whole = []
    for dim, (name, size) in enumerate(dim_axes):
        fits = tensor.shape[dim] % size == 0 and name not in split
        split.append(name if fits else None)
        if not fits and name not in split:
            whole.append(f"dim {dim} does not divide by {size}")
    note = f"{tensor.name} {tensor.shape}: {' and '.join(whole)}: not split over it" if whole else None
    return Sharding(tuple(split), note)


def _fsdp(tensor: Tensor, mesh: MeshShape) -> Sharding:
    """Shard dim 0 of every tensor over `batch`, as PyTorch's FSDP2 does."""
    return _one_axis(tensor, _axis(mesh, "batch", 0), 0)


def _largest_axis(tensor: Tensor, mesh: MeshShape) -> Sharding:
    """Put the largest axis on the largest dim that it divides, then the next axis on the next such dim."""
    split: list[str | None] = [None] * len(tensor.shape)
    left_over = []
    for name, size in sorted(mesh.axes, key=lambda axis: -axis[1]):
        free = [d for d, axis_of_dim in enumerate(split) if axis_of_dim is None and tensor.shape[d] % size == 0]
        if free:
            split[max(free, key=lambda d: (tensor.shape[d], -d))] = name
        elif size > 1:
            left_over.append(name)
    whole = f"{tensor.name} {tensor.shape}: no dim is left for {' and '.join(left_over)}" if left_over else None
    return Sharding(tuple(split), whole)


RULES: dict[str, Callable[[Tensor, MeshShape], Sharding]] = {
    "megatron": _megatron,
    "kerashub": _kerashub,
    "fsdp": _fsdp,
    "largest-axis": _largest_axis,
    "replicated": _replicated,
}


SUMMARIES = {
    "megatron": "Tensor parallelism over `model` (Shoeybi et al. 2019), whole on the other axes.",
    "kerashub": "Matrices over `batch` and `model`, as KerasHub's `LlamaBackbone.get_layout_map` lays them out.",
    "fsdp": "Dim 0 of every tensor over `batch`, as PyTorch's FSDP2 does.",
    "largest-axis": "The largest axis on the largest dim that it divides, then the next axis on the next such dim.",
    "replicated": "Every tensor whole on every device.",
}
"""One sentence for each rule."""


def sharding(rule: str, tensor: Tensor, mesh: MeshShape) -> Sharding:
    """Lay one tensor out. Raises: UnknownNameError."""
    if rule not in RULES:
        raise UnknownNameError(f"no layout rule is called {rule!r}; there are: {', '.join(RULES)}")
    return RULES[rule](tensor, mesh) if tensor.shape else Sharding(())


def elements_on_all_devices(tensor: Tensor, layout: Sharding, mesh: MeshShape) -> int:
    """Return the elements on all devices together: more than the tensor's own if it is replicated."""
    sizes = dict(mesh.axes)
    shards = prod(sizes[axis] for axis in layout.axes if axis is not None)
    return tensor.elements * mesh.devices // shards
