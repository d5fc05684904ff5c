"""Measure how fast a GPU copies its memory: the limit for its kernels, measured in the same rounds.

CUDA's driver copies one array to another, each larger than any cache: 4 bytes are read and 4 written per element.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from bench.measuring.events import DriverEvents
from bench.peers.abilities import Abilities
from bench.peers.peer import Peer, Session
from optim.errors import UnsupportedError
from optim.native.driver import DRIVER, Driver, DriverError, Facts, Stream

if TYPE_CHECKING:
    from bench.cases.case import Case

ELEMENTS = 64 * 1024 * 1024
"""Bytes of each array: 256 MiB, five times the cache of an H100."""
FLOAT32 = 4
EVENTS = "CUDA events"


@cache
def gpu(path: str = DRIVER) -> tuple[Stream, Facts]:
    """Return the default stream of the first GPU, and its driver's facts about it. Raises UnsupportedError."""
    try:
        driver = Driver(path)
        first = driver.first()
        return driver.default_stream(first), driver.facts(first)
    except DriverError as error:
        raise UnsupportedError(str(error)) from error


def session(stream: Stream, elements: int = ELEMENTS) -> Session:
    """Return a session whose step is one copy. Raises UnsupportedError if memory is short."""
    size = elements * FLOAT32
    try:
        source, target = stream.allocate(size), stream.allocate(size)
        events = DriverEvents(stream, EVENTS, size)
    except DriverError as error:
        raise UnsupportedError(str(error)) from error
    return Session(
        place=lambda index, array: array,
        apply=lambda gradients: stream.copy(target, source, size),
        wait=stream.synchronise,
        read=lambda index: [],  # type: ignore[arg-type, return-value]
        events=events,
    )


def _prepare(case: Case) -> Session:
    return session(gpu()[0])


COPY = Peer(
    name="roof: copy",
    summary="1 read, 1 write per element, by CUDA's driver",
    module=__name__,
    has=Abilities(("numpy",), "numpy"),
    prepare=_prepare,
)
