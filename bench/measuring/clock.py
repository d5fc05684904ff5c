"""Time one session: samples, warm-up until two windows agree, and calibration. The clock is replaceable."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Protocol

Clock = Callable[[], float]
"""Returns seconds since any origin, monotonic."""

WINDOW = 3
AGREEMENT = 0.1
"""Two windows agree if their medians differ by less than this fraction of the later one."""

SHORTEST_SAMPLE = 0.05
"""Seconds of a sample: shorter steps are repeated within a sample until it lasts this long.

It is a thousand times the time to wake a process. Many short rounds show more in the same time than few long ones,
because neighbouring samples are closer in time.
"""

MOST_STEPS_PER_SAMPLE = 1000

LEAST_WARM_UP = {"gpu": 0.5}
"""Least seconds of warm-up, by device: the clocks of an idle GPU are low."""

WALL_CLOCK = "wall clock"


class Steps(Protocol):
    """The timed object: `bench.peers.peer.Session`, or a fake."""

    def run(self, steps: int) -> None: ...

    def synchronise(self) -> None: ...


@dataclass(frozen=True)
class WarmUp:
    """Attributes: steps run; seconds they took; whether the last two windows agreed; seconds per step at the end."""

    steps: int
    seconds: float
    steady: bool
    step_seconds: float


def sample(session: Steps, steps: int, clock: Clock = time.perf_counter) -> float:
    """Return the seconds per step of `steps` steps, with a wait for every device after the last; garbage collection is
    off."""
    session.synchronise()
    collecting = gc.isenabled()
    gc.disable()
    try:
        start = clock()
        session.run(steps)
        session.synchronise()
        return (clock() - start) / steps
    finally:
        if collecting:
            gc.enable()


def single_steps(
    session: Steps, steps: int, clock: Clock = time.perf_counter, before: Callable[[], object] = lambda: None
) -> list[float]:
    """Return the seconds of each of some steps, waiting for every one; `before` runs before each and is not timed."""
    durations = []
    for _ in range(steps):
        before()
        durations.append(sample(session, 1, clock))
    return durations


def warm_up(
    session: Steps,
    most_seconds: float,
    most_steps: int = 100,
    clock: Clock = time.perf_counter,
    least_seconds: float = 0.0,
) -> WarmUp:
    """Run steps one at a time until two windows of them agree, or until a cap. Reaching a cap is reported, not an
    error.

    Args:
      least_seconds: least duration, whatever the number of steps: the clocks of a GPU rise while it works.
    """
    start = clock()
    seconds: list[float] = []
    steady = False
    while clock() - start < least_seconds or (
        not steady and len(seconds) < most_steps and clock() - start <= most_seconds
    ):
        seconds.append(sample(session, 1, clock))
        steady = _agree(seconds)
    return WarmUp(len(seconds), clock() - start, steady, median(seconds[-WINDOW:]))


def _agree(seconds: list[float]) -> bool:
    if len(seconds) < 2 * WINDOW:
        return False
    earlier, later = median(seconds[-2 * WINDOW : -WINDOW]), median(seconds[-WINDOW:])
    return abs(earlier - later) < AGREEMENT * later


def steps_per_sample(step_seconds: float) -> int:
    """Return how many steps a sample needs to last SHORTEST_SAMPLE."""
    return min(MOST_STEPS_PER_SAMPLE, max(1, math.ceil(SHORTEST_SAMPLE / max(step_seconds, 1e-9))))
