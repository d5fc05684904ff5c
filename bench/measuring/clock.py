"""Timing of one session: samples, warm-up until two windows agree, and calibration. The clock can be
replaced."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Protocol

Clock = Callable[[], float]
"""Seconds from any origin, monotonic."""

WINDOW = 3
AGREEMENT = 0.1
"""Two windows agree when their medians differ by less than this part of the later one."""

SHORTEST_SAMPLE = 0.05
"""Seconds; shorter steps are repeated within a sample until it lasts this long: a thousand times what waking a process
takes. Many short rounds tell more in the same time than few long ones, whose neighbours are further apart."""

MOST_STEPS_PER_SAMPLE = 1000

LEAST_WARM_UP = {"gpu": 0.5}
"""Seconds of warm-up at the least, by device: the clocks of an idle GPU are low."""

WALL_CLOCK = "wall clock"


class Steps(Protocol):
    """What is timed: `bench.peers.peer.Session`, or a fake."""

    def run(self, steps: int) -> None: ...

    def synchronise(self) -> None: ...


@dataclass(frozen=True)
class WarmUp:
    """Attributes: steps run; seconds they took; whether the last two windows agreed; seconds per step at the
    end."""

    steps: int
    seconds: float
    steady: bool
    step_seconds: float


def sample(session: Steps, steps: int, clock: Clock = time.perf_counter) -> float:
    """Seconds per step of `steps` steps and the wait for every device after the last, the collector off."""
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
    """Seconds of each of some steps, every one waited for; `before` runs ahead of each and is not timed."""
    found = []
    for _ in range(steps):
        before()
        found.append(sample(session, 1, clock))
    return found


def warm_up(
    session: Steps,
    most_seconds: float,
    most_steps: int = 100,
    clock: Clock = time.perf_counter,
    least_seconds: float = 0.0,
) -> WarmUp:
    """Steps one at a time until two windows of them agree, or a cap ends it, which is reported and no failure.

    Args:
      least_seconds: of steps, however many: the clocks of a GPU rise while it works.
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
    """How many steps a sample needs to last SHORTEST_SAMPLE."""
    return min(MOST_STEPS_PER_SAMPLE, max(1, math.ceil(SHORTEST_SAMPLE / max(step_seconds, 1e-9))))
