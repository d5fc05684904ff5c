"""Medians, spreads and paired ratios of interleaved rounds.

Samples of one peer are autocorrelated and share the machine's slow phases with their neighbours, so peers are
compared round by round: the ratio of a peer is the median over rounds of (its time / the baseline's time in
the same round), and its interval comes from resampling whole rounds (percentile bootstrap, 10,000 resamples).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

RESAMPLES = 10_000
CONFIDENCE = 0.95

SMALLEST_DIFFERENCE = 0.03
"""Two times closer than this are called the same."""

FEWEST_ROUNDS = 5
"""Below it the interval of a median cannot reach 90% coverage, so no verdict is given."""


FEWEST_FOR_IQR = 4


@dataclass(frozen=True)
class Ratio:
    """Time of a peer over time of the baseline.

    Attributes: baseline's name; median over rounds; 95% interval; rounds; verdict: "faster", "slower", "same"
    or "unclear".
    """

    baseline: str
    median: float
    low: float
    high: float
    rounds: int
    verdict: str


def paired_ratio(
    times: Mapping[tuple[int, int], float], baseline: str, baseline_times: Mapping[tuple[int, int], float]
) -> Ratio | None:
    """The ratio over the rounds that both have; keys are (group, round). None where they share no round."""
    shared = sorted(times.keys() & baseline_times.keys())
    if not shared:
        return None
    ratios = [times[key] / baseline_times[key] for key in shared]
    low, high = interval(ratios)
    return Ratio(baseline, median(ratios), low, high, len(ratios), verdict(low, high, len(ratios)))


def ratio_by_way_of(mine: Ratio, other: Ratio, name: str) -> Ratio | None:
    """The ratio to a peer `name` that shares no round, through the baseline that both were compared with.

    Its interval is the widest that the two intervals allow. None where the baselines differ.
    """
    if mine.baseline != other.baseline:
        return None
    low, high = mine.low / other.high, mine.high / other.low
    rounds = min(mine.rounds, other.rounds)
    return Ratio(name, mine.median / other.median, low, high, rounds, verdict(low, high, rounds))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95% bootstrap interval of the median; with fewer than three values, their range."""
    if len(values) < 3 or min(values) == max(values):
        return min(values), max(values)
    import numpy as np
    from scipy.stats import bootstrap

    found = bootstrap(
        (np.asarray(values),),
        np.median,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",  # BCa needs a smooth statistic; a median's jackknife takes two or three values
        random_state=np.random.default_rng(0),
        vectorized=True,
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def verdict(low: float, high: float, rounds: int) -> str:
    """What the interval of a ratio says, in one word; never from fewer than FEWEST_ROUNDS rounds."""
    most, least = 1 + SMALLEST_DIFFERENCE, 1 / (1 + SMALLEST_DIFFERENCE)
    if rounds < FEWEST_ROUNDS:
        return "unclear"
    if high < least:
        return "faster"
    if low > most:
        return "slower"
    return "same" if least <= low and high <= most else "unclear"


def median_absolute_deviation(values: Sequence[float]) -> float:
    middle = median(values)
    return median([abs(value - middle) for value in values])


def relative_iqr(values: Sequence[float]) -> float:
    """Interquartile range as a part of the median; 0 for fewer than FEWEST_FOR_IQR values."""
    if len(values) < FEWEST_FOR_IQR:
        return 0.0
    from statistics import quantiles

    first, _, third = quantiles(values, n=4, method="inclusive")
    return (third - first) / median(values)
