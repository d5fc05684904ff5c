"""Plans: the costs of each mesh, layout and placement, and which of them fit into a device's memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log, prod

from bench.cases.layouts import MeshShape
from bench.cases.workloads import Architecture, Workload
from bench.errors import OptionError
from bench.forecast import activations
from bench.forecast.devices import Device
from bench.forecast.footprint import (
    ACCUMULATED,
    AVERAGE,
    PLACEMENTS,
    Footprint,
    Placed,
    Training,
    footprint,
    local_elements,
    place,
)
from bench.forecast.state import algorithm
from bench.forecast.traffic import ACTIVATIONS, ALL_REDUCE, FORWARD, GRADIENTS, Collective, collectives, data_axes


@dataclass(frozen=True)
class Speeds:
    """Bytes per second, or None if unknown.

    Attributes:
      memory: of `sharing` devices together.
      links: bytes that one device sends at the same time as all others, by mesh axis; link: over any other axis.
      sharing: how many devices share `memory`: 1 for accelerators, which have separate memory, all of the mesh for
        logical devices of one machine (None means that).
      flops: products per second of a device; device: its nodes determine the speed of axes without a link.
    """

    memory: float | None = None
    link: float | None = None
    sharing: int | None = 1
    links: Mapping[str, float] = field(default_factory=dict)
    flops: float | None = None
    device: Device | None = None

    def of(self, axes: Sequence[str], mesh: MeshShape) -> float | None:
        """Return the speed of the slowest of these axes.

        An axis of a mesh stays within nodes if it and all axes further in do.
        """
        speeds = [self._of_axis(axis, mesh) for axis in axes]
        return None if None in speeds else min(speed for speed in speeds if speed is not None)

    def _of_axis(self, axis: str, mesh: MeshShape) -> float | None:
        if axis in self.links:
            return self.links[axis]
        if self.link is not None or self.device is None:
            return self.link
        names = [name for name, _ in mesh.axes]
        reach = prod(size for _, size in mesh.axes[names.index(axis) :])
        return self.device.near if reach <= self.device.node else self.device.far


USED = 0.5
"""Fraction of its products per second that a device reaches in training: Megatron-LM's table 1 (Narayanan et al. 2021)
has 44 to 52% on A100, PaLM (Chowdhery et al. 2022) 46% on TPU v4.
"""


@dataclass(frozen=True)
class Plan:
    """One way to place a model and its optimizer.

    Attributes:
      mesh, layout, placement: of parameters and slots.
      footprint: bytes on each device.
      collectives: what a step exchanges.
      update_bytes: least memory traffic of the update on each device, every array read or written once.
      update_seconds, exchange_seconds, compute_seconds: at the known speeds, one after the other; None if a speed, or
        the amount of computation, is unknown.
      notes: tensors that could not follow the layout rule, and other arguments against the plan.
      fits: whether `footprint` and everything else that needs memory stay within the limit; None without a limit.
      possible: whether the batch can be divided over its data axes; batch: examples of a step, None if unknown.
    """

    mesh: MeshShape
    layout: str
    placement: str
    footprint: Footprint
    collectives: tuple[Collective, ...]
    update_bytes: int
    update_seconds: float | None
    exchange_seconds: float | None
    compute_seconds: float | None
    notes: tuple[str, ...]
    fits: bool | None
    possible: bool = True
    batch: int | None = None

    @property
    def sent(self) -> int:
        """Bytes that each device sends in a step, those of forward and backward passes included."""
        return sum(c.sent for c in self.collectives)

    @property
    def sent_in_step(self) -> int:
        """Those of `sent` for the gradients' reduction and the optimizer."""
        return sum(c.sent for c in self.collectives if c.in_step)

    @property
    def seconds(self) -> float | None:
        """Seconds of a step as far as they are known: None if the update or the exchange is unknown."""
        if self.update_seconds is None or self.exchange_seconds is None:
            return None
        return self.update_seconds + self.exchange_seconds + (self.compute_seconds or 0.0)

    @property
    def split(self) -> int:
        """Devices that share the computation of single tensors: all but the data axes."""
        data = data_axes(self.mesh, self.layout)
        return prod(size for name, size in self.mesh.axes if name not in data)


def plan(
    workload: Workload,
    mesh: MeshShape,
    layout: str,
    placement: str,
    training: Training,
    speeds: Speeds | None = None,
    limit: int | None = None,
) -> Plan:
    """Return the plan of one combination; `limit`: bytes that a device has for it. Raises: UnknownNameError."""
    speeds = speeds or Speeds()
    placed = place(workload.tensors, mesh, layout, placement, training)
    tables = [tensor for tensor in workload.tensors if tensor.table and not workload.architecture]
    passes = _passes(workload, mesh, layout, training)
    memory = replace(footprint(placed, mesh, training), activations=passes.activation_bytes if passes else None)
    exchanged = [_repeated(c, placement, passes) for c in collectives(placed, mesh, layout, training)]
    if passes and passes.reduced and passes.axes:
        exchanged.append(
            Collective(ACTIVATIONS, ALL_REDUCE, passes.axes, passes.split, passes.reduced, passes.count, in_step=False)
        )
    moved = update_bytes(placed, mesh, training)
    sharing = speeds.sharing or mesh.devices
    times = [(c.sent, speeds.of(c.axes, mesh)) for c in exchanged]
    known = all(speed is not None for _, speed in times)
    computed = passes.flops / mesh.devices / (speeds.flops * USED) if passes and speeds.flops else None
    notes = [one.note for one in placed if one.note]
    notes += [f"{t.name}: its gradient is counted dense; sparse ones cost what their rows do" for t in tables]
    return Plan(
        mesh,
        layout,
        placement,
        memory,
        tuple(exchanged),
        moved,
        None if speeds.memory is None else moved * sharing / speeds.memory,
        sum(sent / speed for sent, speed in times if speed is not None) if known else None,
        computed,
        tuple(notes),
        None if limit is None else memory.total <= limit,
        passes.possible if passes else True,
        passes.batch if passes else training.batch,
    )


def _repeated(one: Collective, placement: str, passes: _Passes | None) -> Collective:
    """Repeat what is exchanged for each micro-batch: gathered parameters, and gradients that are not kept whole."""
    is_per_micro_batch = one.purpose == FORWARD or (one.purpose == GRADIENTS and placement in ("zero2", "zero3"))
    return replace(one, payload=one.payload * passes.micro_batches) if passes and is_per_micro_batch else one


@dataclass(frozen=True)
class _Passes:
    """Forward and backward passes on one device.

    Attributes: activation_bytes; reduced, bytes that the axes reduce for them, in this many tensors (count);
      split, devices of those axes; flops of the whole step; possible: whether the batch can be divided; batch: examples
      of a step; micro_batches that each device processes one after the other.
    """

    activation_bytes: int
    reduced: int
    count: int
    axes: tuple[str, ...]
    split: int
    flops: float
    possible: bool
    batch: int
    micro_batches: int


def _passes(workload: Workload, mesh: MeshShape, layout: str, training: Training) -> _Passes | None:
    """Return the passes; None if the model's architecture is unknown."""
    model = workload.architecture
    if model is None:
        return None
    data = data_axes(mesh, layout)
    replicas = prod(size for name, size in mesh.axes if name in data)
    axes = tuple(name for name, size in mesh.axes if name not in data and size > 1)
    tensor = layout not in ("replicated", "fsdp")  # the others compute whole tensors everywhere
    split = prod(size for name, size in mesh.axes if name in axes) if tensor else 1
    sequence, batch = training.sequence or model.sequence, _batch(model, mesh, training)
    examples = max(1, -(-batch // replicas))
    itemsize, word = min(training.itemsize, 4), training.checkpointing
    return _Passes(
        activation_bytes=activations.stored_bytes(
            model, sequence, min(examples, training.micro_batch), split, word, itemsize
        ),
        reduced=activations.reduced(model, sequence, examples, word, itemsize) if tensor else 0,
        count=activations.REDUCTIONS[word] * model.layers,
        axes=axes if tensor else (),
        split=split,
        flops=activations.flops(workload.elements, batch * sequence, word) * (1 if tensor else prod_of(mesh, axes)),
        possible=batch % replicas == 0 and model.heads % split == 0,
        batch=batch,
        micro_batches=-(-examples // training.micro_batch),
    )


def _batch(model: Architecture, mesh: MeshShape, training: Training) -> int:
    """Return the examples of a step: the same on every mesh with equally many devices, or times could not be compared.

    The default is the batch that the model was trained with, and at least a micro-batch of each device.
    """
    examples = max(training.micro_batch, -(-(model.batch or 1) // mesh.devices))
    return training.batch or examples * mesh.devices


def prod_of(mesh: MeshShape, axes: Sequence[str]) -> int:
    """Return the number of devices of some axes."""
    return prod(size for name, size in mesh.axes if name in axes)


def update_bytes(placed: Sequence[Placed], mesh: MeshShape, training: Training) -> int:
    """Return the least bytes that one device reads and writes: gradient read, parameter and slots read and written.

    With slots sharded further, the update is computed on the slots' shard and the new parameter written whole.
    """
    total = 0
    for one in placed:
        mine = local_elements(one.tensor.shape, one.specs, mesh)
        options = dict(one.options)
        whole = [(slot, specs) for slot, specs in one.slots if slot.is_whole(one.tensor)]
        slot_bytes = (
            sum(training.bytes_of(slot, one.tensor) for slot, _ in whole) + training.ema * training.slot_itemsize
        )
        shards = [*(specs for _, specs in whole), *([options[AVERAGE]] if training.ema else [])]
        share = local_elements(one.tensor.shape, shards[0], mesh) if shards else mine
        arrays = 3 + algorithm(training.optimizer).further_reads
        total += arrays * share * training.itemsize + 2 * share * slot_bytes
        total += 2 * 4 * share if training.master_copies else 0
        total += mine * training.itemsize if share < mine else 0
        total += mine * training.itemsize if training.clip in ("clipnorm", "global_clipnorm") else 0
        if training.accumulate:  # read and written with each gradient, read and cleared at each step
            total += 4 * local_elements(one.tensor.shape, options[ACCUMULATED], mesh) * training.wide_itemsize
    return total


def plans(
    workload: Workload,
    meshes: Sequence[MeshShape],
    layouts: Sequence[str],
    placements: Sequence[str],
    training: Training,
    speeds: Speeds | None = None,
    limit: int | None = None,
) -> list[Plan]:
    """Return every combination; equal ones of a mesh are listed once, under their first names."""
    by_costs: dict[tuple[object, ...], Plan] = {}
    for mesh in meshes:
        for layout in layouts:
            for placement in placements:
                candidate = plan(workload, mesh, layout, placement, training, speeds, limit)
                same = (mesh, candidate.footprint.total, candidate.sent, candidate.update_bytes)
                by_costs.setdefault(same, candidate)
    return list(by_costs.values())


def meshes_of(devices: int) -> list[MeshShape]:
    """Return every (batch, model) mesh with this many devices, most data parallel first. Raises: OptionError."""
    if devices < 1:
        raise OptionError(f"{devices} devices: there must be 1 or more")
    return [MeshShape((("batch", devices // n), ("model", n))) for n in _divisors(devices)]


def _divisors(number: int) -> Iterator[int]:
    return (n for n in range(1, number + 1) if number % n == 0)


def ranked(candidates: Sequence[Plan]) -> list[Plan]:
    """Rank plans: first those that are possible and fit.

    Of these the one with the shortest step comes first; if speeds are unknown, the one that sends least; then the
    simpler one, with less sharded. If the traffic of a split model's forward and backward passes is unknown, those that
    split least come first. Of plans that do not fit, or with no limit, the one that holds least comes first.
    """
    return sorted(candidates, key=_rank)


def _rank(one: Plan) -> tuple[float, ...]:
    simple = PLACEMENTS.index(one.placement) + one.split / 1e6
    if one.fits and one.possible:
        seconds = one.seconds
        split = one.split if one.footprint.activations is None else 1
        # Times within a hundredth count as equal, and then the simpler plan is better.
        first = float(one.sent) if seconds is None else round(log(max(seconds, 1e-12)) * 100)
        return (0.0, split, first, simple, one.footprint.total)
    return (1.0 + (not one.possible), float(one.footprint.total), simple, 0.0)
