"""Plans: what each mesh, layout and placement costs, and which of them fit into a device's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.errors import OptionError
from bench.forecast.footprint import ACCUMULATED, AVERAGE, Footprint, Placed, Training, footprint, local_elements, place
from bench.forecast.state import algorithm
from bench.forecast.traffic import Collective, collectives
from bench.layouts import MeshShape
from bench.workloads import Workload


@dataclass(frozen=True)
class Speeds:
    """Bytes per second, or None where unknown.

    Attributes:
      memory: of `sharing` devices together.
      link: what one device sends at the same time as all others send.
      sharing: how many devices share `memory`: 1 for accelerators with memory of their own, all of the mesh for
        logical devices of one machine (None stands for that).
    """

    memory: float | None = None
    link: float | None = None
    sharing: int | None = 1


@dataclass(frozen=True)
class Plan:
    """One way to place a model and its optimizer.

    Attributes:
      mesh, layout, placement: where parameters and slots are.
      held: bytes on each device.
      collectives: what a step exchanges.
      update_bytes: least memory traffic of the update on each device, every array read or written once.
      update_seconds, exchange_seconds: at the speeds given; None where a speed is unknown.
      notes: tensors on which the layout rule could not be kept.
      fits: whether `held` and what else needs memory stay within the limit; None without a limit.
    """

    mesh: MeshShape
    layout: str
    placement: str
    held: Footprint
    collectives: tuple[Collective, ...]
    update_bytes: int
    update_seconds: float | None
    exchange_seconds: float | None
    notes: tuple[str, ...]
    fits: bool | None

    @property
    def sent(self) -> int:
        """Bytes that each device sends in a step, gathering for forward and backward passes included."""
        return sum(c.sent for c in self.collectives)

    @property
    def sent_in_step(self) -> int:
        """Of those, what the gradients' reduction and the optimizer send."""
        return sum(c.sent for c in self.collectives if c.in_step)


def plan(
    workload: Workload,
    mesh: MeshShape,
    layout: str,
    placement: str,
    training: Training,
    speeds: Speeds | None = None,
    limit: int | None = None,
) -> Plan:
    """The plan of one combination; `limit`: bytes that a device has for it. Raises: UnknownNameError."""
    speeds = speeds or Speeds()
    placed = place(workload.tensors, mesh, layout, placement, training)
    held = footprint(placed, mesh, training)
    exchanged = tuple(collectives(placed, mesh, layout, training))
    moved = update_bytes(placed, mesh, training)
    sharing = speeds.sharing or mesh.devices
    sent = sum(c.sent for c in exchanged if c.in_step)
    return Plan(
        mesh,
        layout,
        placement,
        held,
        exchanged,
        moved,
        None if speeds.memory is None else moved * sharing / speeds.memory,
        0.0 if sent == 0 else None if speeds.link is None else sent / speeds.link,
        tuple(one.note for one in placed if one.note),
        None if limit is None else held.total <= limit,
    )


def update_bytes(placed: Sequence[Placed], mesh: MeshShape, training: Training) -> int:
    """Bytes that one device reads and writes at least: gradient read, parameter and slots read and written.

    With slots sharded further, the update is computed on the slots' shard and the new parameter written whole.
    """
    total = 0
    for one in placed:
        mine = local_elements(one.tensor.shape, one.specs, mesh)
        options = dict(one.options)
        shards = [specs for slot, specs in one.slots if slot.is_whole(one.tensor)]
        shards += [options[AVERAGE]] if training.ema else []
        share = local_elements(one.tensor.shape, shards[0], mesh) if shards else mine
        arrays = 3 + 2 * len(shards) + algorithm(training.optimizer).further_reads
        total += arrays * share * training.itemsize
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
    """Every combination; those of a mesh that come out alike are listed once, under their first names."""
    found: dict[tuple[object, ...], Plan] = {}
    for mesh in meshes:
        for layout in layouts:
            for placement in placements:
                made = plan(workload, mesh, layout, placement, training, speeds, limit)
                same = (mesh, made.held.total, made.sent, made.update_bytes)
                found.setdefault(same, made)
    return list(found.values())


def meshes_of(devices: int) -> list[MeshShape]:
    """Every (batch, model) mesh of so many devices, most data parallel first. Raises: OptionError."""
    if devices < 1:
        raise OptionError(f"{devices} devices: there must be 1 or more")
    return [MeshShape((("batch", devices // n), ("model", n))) for n in _divisors(devices)]


def _divisors(number: int) -> Iterator[int]:
    return (n for n in range(1, number + 1) if number % n == 0)


def ranked(found: Sequence[Plan]) -> list[Plan]:
    """Those that fit first, and of these the one that sends least, then in the order given (megatron before rules whose
    forward pass nobody has written down); of those that do not fit, or with no limit, the one that holds least."""
    return sorted(found, key=lambda p: (0, p.sent) if p.fits else (1, p.held.total))
