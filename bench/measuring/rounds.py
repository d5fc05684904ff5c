"""Decide when to stop: after a fixed number of rounds, or when every interval is narrow or the time is spent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.measuring import stats
from bench.measuring.clock import Clock

NARROW = 0.01
"""Half width of an interval, as a fraction of the ratio, at which rounds end: a difference of 5% is then detected."""

MOST_ROUNDS = 2000

SECOND, FEW, FURTHER = 0.85, 0.75, 0.6
"""Fractions of the time within which a second process of each peer, further ones up to MANY, and more may be started.

Without a second process the variation between processes is unknown. With two, Student's t, 13, makes the interval wide.
A fourth still improves it more than as many rounds would.
"""

MANY = 4

AROUND = 8.0
"""Seconds of a budget, at most half of it, that are reserved for work before the processes start and after the last
round."""


@dataclass(frozen=True)
class Pace:
    """How many rounds to make; at least as many as an interval needs.

    Attributes: rounds, if their number is fixed; budget, seconds from the command to its answer if it is not fixed.
    """

    rounds: int | None = None
    budget: float = 60.0

    @property
    def seconds(self) -> float:
        """Seconds from the start of the processes to the last round."""
        return max(self.budget - AROUND, self.budget / 2)

    def least(self, comparisons: int) -> int:
        """Return the fewest rounds with which each of `comparisons` ratios has an interval."""
        return next(n for n in range(1, MOST_ROUNDS) if stats.edge(n, max(1, comparisons)) is not None)


class Rounds:
    """The rounds of one case; `start` is when its time began."""

    def __init__(self, pace: Pace, comparisons: int, start: float, clock: Clock = time.monotonic) -> None:
        self._pace = pace
        self._least = pace.least(comparisons)
        self._start = start
        self._clock = clock
        self._first: float | None = None
        self.done = 0

    @property
    def expected(self) -> int:
        """The expected number of rounds, for a progress bar."""
        if self._pace.rounds is not None:
            return self._pace.rounds
        left = self._pace.seconds - (self._clock() - self._start)
        round_seconds = self._round_seconds()
        return max(self._least, self.done + int(left / round_seconds) if round_seconds else self._least)

    def leaves(self, seconds: float, processes: int) -> bool:
        """Whether enough time is left for rounds after another `seconds` before them, with `processes` started."""
        part = SECOND if processes == 1 else FEW if processes < MANY else FURTHER
        return self._pace.rounds is not None or self._clock() - self._start + seconds < part * self._pace.seconds

    def more(self, width: Callable[[], float]) -> bool:
        """Whether to make another round; `width` is the wider half of the widest interval."""
        if self._first is None:
            self._first = self._clock()
        if self._pace.rounds is not None:
            return self.done < self._pace.rounds
        if self.done < self._least:
            return True
        if self.done >= MOST_ROUNDS or self._clock() - self._start + self._round_seconds() > self._pace.seconds:
            return False
        return width() > NARROW

    def _round_seconds(self) -> float:
        return (self._clock() - self._first) / self.done if self._first is not None and self.done else 0.0
