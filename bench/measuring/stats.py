"""Medians, their intervals, and paired ratios of interleaved rounds: the one source of these for all kinds of results.

Samples of one peer share the machine's slow phases with their neighbours, so peers are compared round by round. The
ratio of a peer is the median over rounds of (its time / the baseline's in the same round). Its interval runs from one
order statistic to another. It covers the median of any distribution at least as often as stated (binomial; David and
Nagaraja, Order Statistics, 2003, §7.1). Several comparisons share the error probability (Bonferroni). With too few
rounds there is no interval.

Several processes of one program differ through the layout of their memory, and more rounds do not show by how much
(Kalibera and Jones, doi 10.1145/2464157.2464160). If peers have several processes, these take turns round by round. The
variation of ratios between turns, pooled over all peers, widens every interval to Student's t of the processes'
medians, if that is wider. It contains the noise of their rounds, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import exp, inf, isfinite, isinf, log, pi, sin, sqrt
from statistics import fmean, median

CONFIDENCE = 0.95

SAME = 0.03
"""Two times are called the same if they certainly differ by less than this."""

DIFFERENT = 0.01
"""Others are called faster or slower if they certainly differ by more than this: the addresses of code and data can
cause smaller differences.
"""

FEWEST_FOR_IQR = 4

UNSTEADY_IQR = 0.10
VERY_UNSTEADY_IQR = 0.25
"""Bands of IQR over median from which torch.utils.benchmark warns."""

Place = tuple[int, int, int]
"""(group, round, process) of a sample."""

Times = Mapping[Place, float]


@dataclass(frozen=True)
class Estimate:
    """A median with its 95% interval; None if there are too few rounds for one, or an edge is infinite."""

    median: float
    low: float | None
    high: float | None
    rounds: int


@dataclass(frozen=True)
class Ratio:
    """Time of a peer over time of the baseline.

    Attributes: baseline's name; median over rounds; low, high: 95% interval, None with too few rounds; rounds; verdict:
      "faster", "slower", "same" or "unclear"; processes of each; why: evidence against a verdict, if there is any.
    """

    baseline: str
    median: float
    low: float | None
    high: float | None
    rounds: int
    verdict: str
    processes: int = 1
    why: str | None = None


@cache
def edge(count: int, comparisons: int = 1) -> int | None:
    """Return how many values from either end the interval of a median begins, so that it covers; None if no value
    does."""
    from scipy.stats import binom

    miss = (1 - CONFIDENCE) / comparisons / 2
    index = int(binom.ppf(miss, count, 0.5)) if count else 0
    while index >= 0 and binom.cdf(index, count, 0.5) > miss:
        index -= 1
    return index if index >= 0 else None


def interval(values: Sequence[float], comparisons: int = 1, phases: float = 0.0) -> tuple[float, float] | None:
    """Return the interval of the median from order statistics. Infinite values, such as misses, are larger than any.

    Args:
      phases: correlation of neighbours, from `phases`; correlated values contain less information.
    """
    place = edge(len(values), comparisons)
    if place is None:
        return None
    middle = (len(values) - 1) / 2
    place = max(0, int(middle - (middle - place) * sqrt((1 + phases) / (1 - phases))))
    ordered = sorted(values)
    return ordered[place], ordered[-1 - place]


def phases(values: Sequence[float]) -> float:
    """Return the correlation of neighbours, from the side of the median that they are on; below 1.

    It is 0 if chance may explain it. A machine's slow phases are longer than a round, and do not always slow two peers
    equally.
    """
    middle = median(values)
    sides = [(value > middle) - (value < middle) for value in values]
    correlation = sum(a * b for a, b in pairwise(sides)) / len(values)
    return min(sin(correlation * pi / 2), 0.9) if correlation > 2 / sqrt(len(values)) else 0.0  # as of normal values


def estimate(values: Sequence[float], comparisons: int = 1) -> Estimate:
    """Return median and interval of one or more values."""
    edges = interval(values, comparisons)
    low, high = (None if isinf(x) else x for x in edges) if edges else (None, None)
    return Estimate(median(values), low, high, len(values))


@dataclass(frozen=True)
class Between:
    """The variation of a ratio from one pair of processes to another.

    Attributes: standard deviation of its logarithm; degrees of freedom of the estimate.
    """

    deviation: float
    freedom: float

    def half_width(self, processes: int, comparisons: int) -> float:
        """Return the half width of the interval of the mean over `processes` pairs, as a logarithm."""
        from scipy.stats import t

        return float(t.ppf(1 - (1 - CONFIDENCE) / comparisons / 2, self.freedom)) * self.deviation / sqrt(processes)


ONE_PROCESS = Between(0.1, inf)
"""Assumed if each peer had one process: the middle of the values in the tables of docs/benchmarks/ with several."""


def between(all_logs: Sequence[Mapping[Place, float]]) -> Between | None:
    """Return the spread of `log_ratios` between processes, pooled over peers; None if no peer has several.

    It includes the noise of the rounds: with two processes, the rest without it would too often be zero.
    """
    squares, freedom = 0.0, 0
    for logs in all_logs:
        by_process: dict[int, list[float]] = {}
        for (_, _, process), value in logs.items():
            by_process.setdefault(process, []).append(value)
        if len(by_process) < 2:
            continue
        middles = [median(values) for values in by_process.values()]
        squares += sum((middle - fmean(middles)) ** 2 for middle in middles)
        freedom += len(middles) - 1
    return Between(sqrt(squares / freedom), freedom) if freedom else None


def log_ratios(times: Times, baseline_times: Times) -> dict[Place, float]:
    """Return the logarithm of the ratio in each round that both have."""
    return {place: log(times[place] / baseline_times[place]) for place in sorted(times.keys() & baseline_times.keys())}


def paired_ratio(
    times: Times, baseline: str, baseline_times: Times, comparisons: int = 1, spread: Between | None = None
) -> Ratio | None:
    """Return the ratio over the rounds that both have; None if they share no round.

    Args:
      comparisons: how many ratios are judged together; spread: between processes, from `between`.
    """
    logs = log_ratios(times, baseline_times)
    if not logs:
        return None
    processes = len({process for _, _, process in logs})
    values = list(logs.values())
    more = spread.half_width(processes, comparisons) if spread is not None else 0.0
    middle, edges = median(values), interval(values, comparisons, phases(values))
    if edges is None:
        return Ratio(baseline, exp(middle), None, None, len(values), "unclear", processes)
    low, high = exp(min(edges[0], middle - more)), exp(max(edges[1], middle + more))
    return Ratio(baseline, exp(middle), low, high, len(values), verdict(low, high), processes)


def ratio_by_way_of(mine: Ratio, other: Ratio, name: str) -> Ratio | None:
    """Return the ratio to a peer `name` that shares no round, through the baseline that both were compared with.

    Its interval is the widest that the two intervals allow. None if the baselines differ.
    """
    if mine.baseline != other.baseline:
        return None
    rounds = min(mine.rounds, other.rounds)
    if mine.low is None or mine.high is None or other.low is None or other.high is None:
        return Ratio(name, mine.median / other.median, None, None, rounds, "unclear")
    low, high = mine.low / other.high, mine.high / other.low
    return Ratio(name, mine.median / other.median, low, high, rounds, verdict(low, high))


def verdict(low: float | None, high: float | None, different: float = DIFFERENT) -> str:
    """Return the verdict of a ratio's interval in one word; `different`: its least distance from 1."""
    if low is None or high is None:
        return "unclear"
    if low >= 1 / (1 + SAME) and high <= 1 + SAME:
        return "same"
    if high < 1 / (1 + different):
        return "faster"
    return "slower" if low > 1 + different else "unclear"


def width(ratio: Ratio | None) -> float:
    """Return the wider side of a ratio's interval, as a fraction of the ratio; infinite without one."""
    if ratio is None or ratio.low is None or ratio.high is None or not isfinite(ratio.median):
        return inf
    return max(ratio.high / ratio.median, ratio.median / ratio.low) - 1


def median_absolute_deviation(values: Sequence[float]) -> float:
    middle = median(values)
    return median([abs(value - middle) for value in values])


def relative_iqr(values: Sequence[float]) -> float:
    """Return the interquartile range as a fraction of the median; 0 for fewer than FEWEST_FOR_IQR values."""
    if len(values) < FEWEST_FOR_IQR:
        return 0.0
    from statistics import quantiles

    first, _, third = quantiles(values, n=4, method="inclusive")
    return (third - first) / median(values)
