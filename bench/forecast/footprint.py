"""Predict the bytes on one device. All devices of a mesh hold the same: DTensor shards evenly or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from bench.cases.layouts import MeshShape, sharding
from bench.cases.workloads import Tensor
from bench.errors import OptionError, UnknownNameError
from bench.forecast.activations import CHECKPOINTING
from bench.forecast.state import SlotShape, algorithm, slots
from optim import slot_layout
from optim.bits import codes
from optim.bits.storage import BFLOAT16, INT8, SLOT_DTYPES
from optim.layouts.sharding import UNSHARDED, local_shape, zero1_specs
from optim.options.slot_dtype import may_be_rounded

PLACEMENTS = ("like_variable", "zero1", "zero2", "zero3")
"""ZeRO's stages (Rajbhandari et al. 2020): what is sharded further over the data axis. Nothing; slots; gradients too;
parameters too.
"""

OF_OPTIM = PLACEMENTS[:2]
"""The placements that `optim` supports on a real mesh."""

DTYPES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
"""Bytes per number."""

_MARK_BYTES = {"int64": 8}[slot_layout.GATHERED_DTYPE]
"""Bytes of each variable's flag that a call brought a gradient for it."""

CLIPS = ("none", "clipvalue", "clipnorm", "global_clipnorm")
AVERAGE, ACCUMULATED, MASTER = slot_layout.AVERAGE, slot_layout.ACCUMULATED_GRADIENT, "master copy"


@dataclass(frozen=True)
class Training:
    """How a model is trained, as far as its size depends on it.

    Attributes:
      optimizer: a name in `bench.cases.algorithms`, optionally with arguments.
      dtype: of parameters and gradients, and of slots without master copies.
      ema: whether an average of every parameter is kept; accumulate: whether gradients are gathered over calls.
      clip: "none", "clipvalue", "clipnorm" or "global_clipnorm".
      slot_dtype: in which slots are stored that the rule allows in fewer bits: "bfloat16", "int8" or None.
      master_copies: of parameters, in float32, with slots in float32, to train 16-bit parameters.
      batch: examples of a step, on all devices; micro_batch: examples that a device processes together; sequence:
        tokens of one.
      checkpointing: what is computed again, see `bench.forecast.activations`.

    Raises: UnknownNameError; OptionError: no slot would be stored in `slot_dtype`.
    """

    optimizer: str = "adam"
    dtype: str = "float32"
    slot_dtype: str | None = None
    ema: bool = False
    accumulate: bool = False
    clip: str = "none"
    master_copies: bool = False
    batch: int | None = None
    micro_batch: int = 1
    sequence: int | None = None
    checkpointing: str = "selective"

    def __post_init__(self) -> None:
        for what, value, known in (
            ("dtype", self.dtype, tuple(DTYPES)),
            ("slot dtype", self.slot_dtype, (None, *SLOT_DTYPES)),
            ("clipping", self.clip, CLIPS),
            ("checkpointing", self.checkpointing, CHECKPOINTING),
        ):
            if value not in known:
                names = ", ".join(name for name in known if name is not None)
                raise UnknownNameError(f"no {what} is called {value!r}; there are: {names}")
        if self.slot_dtype is None:
            return
        if self.dtype == "float64":
            raise OptionError(f"slot_dtype={self.slot_dtype!r} is for parameters of at most 32 bits, not for float64")
        if not any(map(may_be_rounded, algorithm(self.optimizer).rule.slots)):
            raise OptionError(f"{self.optimizer} has no slot that may be stored in fewer bits; leave --slot-dtype out")

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype]

    @property
    def slot_itemsize(self) -> int:
        return 4 if self.master_copies else self.itemsize

    def is_coded(self, slot: SlotShape, tensor: Tensor) -> bool:
        """Whether a slot is 8-bit codes, with a scale for each block."""
        return self.slot_dtype == INT8 and slot.can_be_rounded and prod(tensor.shape) >= codes.SMALLEST

    def bytes_of(self, slot: SlotShape, tensor: Tensor) -> int:
        """Bytes of each number of a slot."""
        if self.slot_dtype == BFLOAT16 and slot.can_be_rounded:
            return DTYPES[BFLOAT16]
        return 1 if self.is_coded(slot, tensor) else self.slot_itemsize

    @property
    def wide_itemsize(self) -> int:
        """Bytes of a number that is computed at least in float32: accumulated gradients, norms."""
        return max(4, self.itemsize)


@dataclass(frozen=True)
class Placed:
    """One tensor on a mesh: the specs of its parameter in use, at rest, and of its gradient, and each slot with its
    specs."""

    tensor: Tensor
    specs: tuple[str, ...]
    slots: tuple[tuple[SlotShape, tuple[str, ...]], ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    """Averages and accumulated gradients, if requested, with their specs."""
    note: str | None
    at_rest: tuple[str, ...] = ()
    gradient: tuple[str, ...] = ()


def place(tensors: Sequence[Tensor], mesh: MeshShape, layout: str, placement: str, training: Training) -> list[Placed]:
    """Place every tensor and its slots as `optim` does. Raises: UnknownNameError."""
    if placement not in PLACEMENTS:
        raise UnknownNameError(f"no placement is called {placement!r}; there are: {', '.join(PLACEMENTS)}")
    axes = dict(mesh.axes)
    placed = []
    for tensor in tensors:
        on_mesh = sharding(layout, tensor, mesh)
        specs = tuple(axis or UNSHARDED for axis in on_mesh.axes)
        further = tuple(zero1_specs(specs, axes, tensor.shape)) if placement != "like_variable" else specs
        gradient = further if placement in ("zero2", "zero3") else specs
        at_rest = further if placement == "zero3" else specs
        tensor_slots = []
        for slot in slots(training.optimizer, tensor):
            # As `optim.state.state` does it: a slot that lacks dims follows its variable under every placement.
            mine = further if slot.is_whole(tensor) else tuple(specs[d] for d in slot.dims)
            tensor_slots.append((slot, mine))
        extras = ((AVERAGE, training.ema), (ACCUMULATED, training.accumulate), (MASTER, training.master_copies))
        options = tuple((name, further) for name, is_requested in extras if is_requested)
        placed.append(Placed(tensor, specs, tuple(tensor_slots), options, on_mesh.note, at_rest, gradient))
    return placed


def local_elements(shape: Sequence[int], specs: Sequence[str], mesh: MeshShape) -> int:
    """Return the elements of a tensor on one device."""
    return prod(local_shape(shape, specs, dict(mesh.axes)))


@dataclass(frozen=True)
class Footprint:
    """Bytes on one device.

    Attributes: parameters, gradients, and slots by name, averages, accumulated gradients and master copies included;
      activations, None if unknown; temporaries: the most that is gathered or reduced together.
    """

    parameters: int
    gradients: int
    slots: Mapping[str, int]
    activations: int | None = None
    temporaries: int = 0

    @property
    def slot_bytes(self) -> int:
        return sum(self.slots.values())

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.slot_bytes + (self.activations or 0) + self.temporaries


def footprint(placed: Sequence[Placed], mesh: MeshShape, training: Training) -> Footprint:
    """Return what one device holds when `apply_gradients` is called; gradients are laid out like their variables."""
    parameters = sum(local_elements(p.tensor.shape, p.at_rest, mesh) for p in placed) * training.itemsize
    gradients = sum(local_elements(p.tensor.shape, p.gradient, mesh) for p in placed) * training.itemsize
    sizes: dict[str, int] = {}
    for one in placed:
        for slot, specs in one.slots:
            shape = [one.tensor.shape[d] for d in slot.dims]
            size = local_elements(shape, specs, mesh) * training.bytes_of(slot, one.tensor)
            sizes[slot.name] = sizes.get(slot.name, 0) + size
            if training.is_coded(slot, one.tensor):  # each device has all scales
                scale = slot_layout.scale_of(slot.name)
                sizes[scale] = sizes.get(scale, 0) + 4 * codes.blocks_of(prod(shape))
        for name, specs in one.options:
            itemsize = training.wide_itemsize if name == ACCUMULATED else training.slot_itemsize
            sizes[name] = sizes.get(name, 0) + local_elements(one.tensor.shape, specs, mesh) * itemsize
    if training.accumulate:
        sizes[slot_layout.GATHERED] = _MARK_BYTES * len(placed)
    gathered = [one for one in placed if one.at_rest != one.specs]
    temporaries = max((local_elements(p.tensor.shape, p.specs, mesh) for p in gathered), default=0) * training.itemsize
    return Footprint(parameters, gradients, sizes, temporaries=2 * temporaries)  # a parameter and its gradient


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_bytes(text: str) -> int:
    """Read `16GB` (10⁹), `16GiB` (2³⁰), `800MB/s` or `1e9`, a positive number of bytes. Raises: OptionError."""
    body = text.strip().removesuffix("/s").strip()
    binary = body.upper().endswith("IB")
    number = body[: -len("iB")] if binary else body.removesuffix("B").removesuffix("b")
    unit = number[-1:].upper() if number[-1:].isalpha() else ""
    try:
        factor = 1024 ** (" KMGT".index(unit)) if binary and unit else _UNITS[unit]
        value = float(number.removesuffix(number[-1:]) if unit else number) * factor
    except (KeyError, ValueError):
        value = 0.0
    if not 0 < value < float("inf"):
        raise OptionError(f"cannot read {text!r} as a positive number of bytes; write 16GB, 16GiB or 800MB")
    return int(value)
