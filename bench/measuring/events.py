"""Time steps on a GPU by its own clock: events that its driver puts between pieces of work.

The timed step follows other work on the GPU, during which the host calls the steps. So the time between the events
is the time of the GPU's work, without waits for the host.

This holds as long as the host is ahead. The time includes waits if a step waits for the GPU, or launches more than
the driver's queue holds (some 1,000 launches).
"""

from __future__ import annotations

import math
from typing import Protocol

from bench.measuring.clock import Steps
from optim.native.driver import Driver, Stream

SCRATCH = 256 * 1024**2
"""Bytes to fill to keep a GPU busy."""

FILLS = 8
"""Fills that are timed, to learn how long one takes."""

MOST_AHEAD = 0.02
"""Seconds of the host's calls to time together."""

ROOM, LEAST_AHEAD, LONGEST = 1.5, 1e-3, 0.05
"""The GPU is kept busy for ROOM times the duration of the host's calls plus LEAST_AHEAD, at most LONGEST, in seconds:
longer work would fill the queue of launches.
"""


class Events(Protocol):
    """Two events of the stream that a framework's steps run on.

    Attributes:
      name: a description, such as "CUDA events on TensorFlow's stream".
    """

    name: str

    def occupy(self, seconds: float) -> None:
        """Give the GPU work for `seconds`. Later work on the stream waits for it."""

    def begin(self) -> None:
        """Record the first event."""

    def end(self) -> float:
        """Record the second event and wait for it. Returns the seconds between both."""


class DriverEvents:
    """Events of CUDA's driver.

    Args:
      scratch: bytes of memory to fill to keep the GPU busy.
    """

    def __init__(self, stream: Stream, name: str, scratch: int = SCRATCH):
        self.name = name
        self._stream = stream
        self._first, self._last = stream.event(), stream.event()
        self._size, self._scratch = scratch, stream.allocate(scratch)
        self._fill_seconds = [self._fills() for _ in range(2)][-1]  # the second time, when clocks are higher

    def occupy(self, seconds: float) -> None:
        for _ in range(math.ceil(seconds / self._fill_seconds)):
            self._stream.fill(self._scratch, self._size)

    def begin(self) -> None:
        self._stream.record(self._first)

    def end(self) -> float:
        self._stream.record(self._last)
        return self._stream.seconds(self._first, self._last)

    def _fills(self) -> float:
        self.begin()
        for _ in range(FILLS):
            self._stream.fill(self._scratch, self._size)
        return max(self.end() / FILLS, 1e-6)


def steps_at_once(most: int, host_seconds: float) -> int:
    """Return how many steps to time between two events.

    Args:
      host_seconds: seconds of the call of a step.
    """
    return max(1, min(most, int(MOST_AHEAD / max(host_seconds, 1e-9))))


def sample(session: Steps, steps: int, events: Events, host_seconds: float) -> float:
    """Return the seconds per step on the GPU. Arguments as for `steps_at_once`."""
    session.synchronise()
    events.occupy(min(LEAST_AHEAD + ROOM * steps * host_seconds, LONGEST))
    events.begin()
    session.run(steps)
    return events.end() / steps


def of_stream(handle: int, name: str) -> DriverEvents:
    """Return events on a framework's stream; 0 is the default stream of the first GPU. Raises DriverError."""
    driver = Driver()
    return DriverEvents(driver.stream(handle) if handle else driver.default_stream(driver.first()), name)
