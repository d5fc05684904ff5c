"""Compute how much of a step's exchange leaves a client: the part of each ring from one client to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from bench.cases.layouts import MeshShape
from bench.forecast.traffic import Collective


def sent_by_a_client(exchanged: Sequence[Collective], mesh: MeshShape, clients: int, *, on_cpu: bool) -> int:
    """Return the bytes that client 0 sends to others in one step; the others send as many.

    Devices are assigned in the order of the mesh, the first ones to client 0, and a ring follows that order.
    """
    total = 0
    for one in exchanged:
        if one.in_step:
            bytes_sent = one.sent_on_cpu if on_cpu else one.sent
            total += bytes_sent * _edges_out(mesh, one.axes, clients)
    return total


def _edges_out(mesh: MeshShape, axes: Sequence[str], clients: int) -> int:
    """Count the edges of all rings over these axes that lead from client 0 to another."""
    per_client = mesh.devices // clients
    edges = 0
    for ring in _rings(mesh, axes):
        following = ring[1:] + ring[:1]
        edges += sum(a < per_client <= b for a, b in zip(ring, following, strict=True))
    return edges


def _rings(mesh: MeshShape, axes: Sequence[str]) -> Iterator[list[int]]:
    """Return the device numbers of each group of devices that differ in these axes only."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, place in enumerate(product(*(range(size) for _, size in mesh.axes))):
        rest = tuple(at for at, (name, _) in zip(place, mesh.axes, strict=True) if name not in axes)
        groups.setdefault(rest, []).append(device)
    yield from groups.values()
