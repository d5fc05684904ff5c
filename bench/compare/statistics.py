"""The ratio of two medians from runs at different times, with an interval that covers the variation between runs.

The two runs share no round that could be paired, and between them the machine itself may have become faster or slower.
The memory bandwidth limits show it: fixed code that ran in the same rounds. A row is measured in units of them if that
reduces the spread of its times within the runs, as for a step that memory bandwidth limits; if not, in seconds.

A relation between rounds need not hold between runs, so the interval is widened to contain the ratio in both units. It
is also widened on both sides by the largest of: how much the limits disagree about the machine, FOLLOWS_WITHIN of what
they agree on, half of the drift from the first half of a run to its second, and LEAST_BETWEEN_RUNS.

Within each run the interval is the one of `bench.measuring.stats`. Background: Kalibera and Jones,
"Rigorous benchmarking in reasonable time" (ISMM 2013), doi 10.1145/2464157.2464160, on variation at several levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, hypot, log
from statistics import median
from typing import TYPE_CHECKING

from bench.measuring import stats

if TYPE_CHECKING:
    import numpy as np

LEAST_BETWEEN_RUNS = 0.01
"""Runs of the same program on an idle machine still differ by about this, through the layout of memory."""
FOLLOWS_WITHIN = 0.5
"""If the whole machine is faster or slower, a row may follow the memory bandwidth limits by at most this part of it."""

FEWEST_BETWEEN_RUNS = 9
"""With fewer rounds, correlated neighbours leave too little information to distinguish two runs."""

OF_A_RANGE = 1.7
"""1.96 standard deviations, over 1.13, the mean range of two values in standard deviations."""


@dataclass(frozen=True)
class Ratio:
    """The second run's time over the first's.

    Attributes: median, in the unit that spreads less; low, high: 95% interval; plain: of the medians in seconds; roofs:
      the second run's memory bandwidth limits over the first's, in time, None without them; in_roofs: whether the unit
      is the limits; rounds: of the run that has fewer; verdict: of the second run, "faster", "slower", "same" or
        "unclear".
    """

    median: float
    low: float | None
    high: float | None
    plain: float
    roofs: float | None
    in_roofs: bool
    rounds: int
    verdict: str


@dataclass(frozen=True)
class Series:
    """Times of one row in the order of measurement, and for each memory bandwidth limit its times in the same
    rounds."""

    times: Sequence[float]
    roofs: Mapping[str, Sequence[float]] = field(default_factory=dict)


def ratio(first: Series, second: Series) -> Ratio:
    """Return the ratio of two series; both have values."""
    import numpy as np

    pairs = [(np.log(first.times), np.log(second.times))]
    names = sorted(first.roofs.keys() & second.roofs.keys())
    shifts = [_difference(np.log(first.roofs[name]), np.log(second.roofs[name])) for name in names]
    if names:
        roofs = [np.mean([np.log(run.roofs[name]) for name in names], axis=0) for run in (first, second)]
        pairs.append((pairs[0][0] - roofs[0], pairs[0][1] - roofs[1]))
    best = min(pairs, key=lambda pair: _spread(pair[0]) + _spread(pair[1]))
    stretch = max(_between_runs(shifts), *(abs(_drift(series)) for series in best))
    points = [_difference(*pair) for pair in pairs]
    middle, edges = _difference(*best), _interval(*best)
    rounds = min(len(first.times), len(second.times))
    low = exp(min(middle - hypot(middle - edges[0], stretch), *points)) if edges else None
    high = exp(max(middle + hypot(edges[1] - middle, stretch), *points)) if edges else None
    return Ratio(
        median=exp(middle),
        low=low,
        high=high,
        plain=exp(points[0]),
        roofs=exp(sum(shifts) / len(shifts)) if shifts else None,
        in_roofs=best is not pairs[0],
        rounds=rounds,
        verdict=stats.verdict(low, high, stats.SAME),
    )


def _difference(one: np.ndarray, two: np.ndarray) -> float:
    import numpy as np

    return float(np.median(two) - np.median(one))


def _spread(values: np.ndarray) -> float:
    """Median absolute deviation."""
    import numpy as np

    return float(np.median(np.abs(values - np.median(values))))


def _between_runs(shifts: Sequence[float]) -> float:
    """Return the expected difference between two runs of the same program, as a logarithm; `shifts`: of the limits."""
    disagreement = OF_A_RANGE * (max(shifts, default=0.0) - min(shifts, default=0.0))
    most = max([abs(value) for value in shifts], default=0.0)
    return max(disagreement, FOLLOWS_WITHIN * most, log(1 + LEAST_BETWEEN_RUNS))


def _drift(series: np.ndarray) -> float:
    """Return half the mean drift between the halves of a run; 0 for too few rounds."""
    half = len(series) // 2
    return _difference(series[:half], series[half:]) / 2 if half >= stats.FEWEST_FOR_IQR else 0.0


def _interval(one: np.ndarray, two: np.ndarray) -> tuple[float, float] | None:
    """Return the interval of the difference of two medians, from those of each (Donner and Zou's MOVER, 2012).

    None if one has too few rounds.
    """
    first, second = stats.interval(one.tolist()), stats.interval(two.tolist())
    if first is None or second is None or min(len(one), len(two)) < FEWEST_BETWEEN_RUNS:
        return None
    middle = _difference(one, two)
    a, b = median(one.tolist()), median(two.tolist())
    return middle - hypot(b - second[0], first[1] - a), middle + hypot(second[1] - b, a - first[0])
