"""Measure how fast this machine can move memory in place, like a peer and in the same rounds.

An optimizer writes the lines it has just read, so it pays no read for its writes as a STREAM copy does. A fair memory
bandwidth limit is measured in place too. There are two patterns: `a += b` (2 reads, 1 write, SGD's mix) and
`p += g; m += g; v += g` by blocks that stay in cache (4 reads, 3 writes, Adam's mix). The limit is the best sample of
the faster pattern.

The patterns use numpy on plain arrays, split over the same threads. They have as many elements as the case updates, or
4 x 128 MiB if that is less. On a GPU the limit is a copy, `bench.roof.device`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING

from bench.peers.abilities import Abilities
from bench.peers.peer import Peer, Session
from bench.roof import device

if TYPE_CHECKING:
    import numpy as np

    from bench.cases.case import Case

BLOCK = 32 * 1024
"""Elements per block: four float32 blocks of 128 KiB fit into the L2 cache of current cores."""

MOST_ELEMENTS = 32 * 1024 * 1024
FLOAT32 = 4


def elements(case: Case) -> int:
    """Return the elements per array."""
    return device.ELEMENTS if case.device == "gpu" else min(case.mesh_elements, MOST_ELEMENTS)


def _spans(total: int, parts: int) -> list[slice]:
    edges = [total * i // parts for i in range(parts + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def _threaded(case: Case, arrays: list[np.ndarray], work: Callable[[list[np.ndarray]], None]) -> Session:
    """Return a session whose step runs `work` on equal parts of the arrays, one thread each (numpy releases the
    GIL)."""
    pool = ThreadPoolExecutor(case.threads)
    parts = [[array[span] for array in arrays] for span in _spans(len(arrays[0]), case.threads)]
    return Session(
        place=lambda index, array: array,
        apply=lambda gradients: list(pool.map(work, parts)),
        wait=lambda: None,
        read=lambda index: arrays[-1],
    )


def _arrays(case: Case, count: int) -> list[np.ndarray]:
    import numpy as np

    # Ones plus a tiny step: adding 1e-9 for hours neither overflows nor meets denormals.
    return [np.full(elements(case), 1.0 if i else 1e-9, dtype=np.float32) for i in range(count)]


def _add(parts: list[np.ndarray]) -> None:
    import numpy as np

    b, a = parts
    np.add(a, b, out=a)


def _adam_mix(parts: list[np.ndarray]) -> None:
    import numpy as np

    g, *written = parts
    for start in range(0, len(g), BLOCK):
        block = slice(start, start + BLOCK)
        for array in written:
            np.add(array[block], g[block], out=array[block])


ADD = Peer(
    name="roof: a += b",
    summary="2 reads, 1 write per element",
    module=__name__,
    has=Abilities(("numpy",), "numpy"),
    prepare=lambda case: _threaded(case, _arrays(case, 2), _add),
)
ADAM_MIX = Peer(
    name="roof: 4 reads, 3 writes",
    summary="p += g; m += g; v += g by blocks",
    module=__name__,
    has=Abilities(("numpy",), "numpy"),
    prepare=lambda case: _threaded(case, _arrays(case, 4), _adam_mix),
)
ROOFS: tuple[tuple[Peer, int], ...] = ((ADD, 12), (ADAM_MIX, 28))
"""Each pattern with the bytes per element that it moves."""
ON_GPUS = ((device.COPY, 8),)


def roofs(case: Case) -> tuple[tuple[Peer, int], ...]:
    """Return the patterns for the device of a case; empty on TPUs."""
    return {"cpu": ROOFS, "gpu": ON_GPUS}.get(case.device, ())
