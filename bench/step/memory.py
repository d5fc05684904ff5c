"""Decide which peers may be alive together, from the memory that each will need."""

from __future__ import annotations

from collections.abc import Sequence

from bench.cases import traffic
from bench.cases.case import FLOAT32, Case
from bench.peers.peer import Peer
from bench.roof.patterns import elements as roof_elements

RUNTIME, FORKED = 800 * 1024**2, 400 * 1024**2
"""Bytes that a TensorFlow process needs before its first tensor; and those of a forked process, without shared
pages."""

TEMPORARIES = 3.5
"""Arrays of the parameters' size that building and an unfused step allocate temporarily: measured up to 3.4 on gpt2."""

SHARE = 0.7
"""Fraction of the available memory that the peers alive together may use."""


def need(peer: Peer, case: Case, runtime: int = RUNTIME) -> int:
    """Estimate the peak bytes of a peer's process: parameters, gradients, slots, temporaries, runtime."""
    temporaries = case.updated_elements(peer.on_mesh) * FLOAT32 * TEMPORARIES
    return runtime + traffic.working_set(case, peer.on_mesh) + int(temporaries)


def too_large(peer: Peer, baseline: Peer, case: Case, available: int, runtime: int = RUNTIME) -> str | None:
    """Explain why a peer does not fit next to the baseline and the memory bandwidth limits.

    Returns: the reason, or None if they fit into their share of `available` bytes.
    """
    needed = need(baseline, case, runtime) + (0 if peer is baseline else need(peer, case, runtime))
    if needed <= _room(case, available):
        return None
    what = peer.name if peer is baseline else f"{peer.name} next to {baseline.name}"
    room = _room(case, available)
    return (
        f"not enough memory: {what} needs about {needed / 1e9:.1f} GB and {room / 1e9:.1f} GB may be used"
        f" ({SHARE:.0%} of available memory, less buffers of the bandwidth test). Choose a smaller workload or"
        " free memory"
    )


def groups(
    peers: Sequence[Peer], baseline: Peer, case: Case, available: int, runtime: int = RUNTIME
) -> list[list[Peer]]:
    """Split peers that are not `too_large` into groups that fit; the baseline is in each."""
    room = _room(case, available) - need(baseline, case, runtime)
    peer_groups: list[list[Peer]] = [[baseline]]
    used = 0
    for peer in (peer for peer in peers if peer is not baseline):
        size = need(peer, case, runtime)
        if used + size > room:
            peer_groups.append([baseline])
            used = 0
        peer_groups[-1].append(peer)
        used += size
    return peer_groups


def _room(case: Case, available: int) -> int:
    roofs = 6 * roof_elements(case) * FLOAT32
    return max(0, int(available * SHARE) - roofs)
