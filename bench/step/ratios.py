"""Compute the ratios of the rows of one case from their samples alone: after measuring, and when rows are judged
again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import fsum, log
from statistics import median

from bench.measuring import stats
from bench.results.records import Sample
from bench.step.row import Row

OURS = "optim-"

SUPPORT = 0.5
"""Other statistics of the same samples must show at least this fraction of the difference that a verdict claims."""

BUSY = 0.2
"""CPUs in use by other programs from which a machine is not quiet."""


def with_ratios(rows: Sequence[Row], baseline: str) -> tuple[Row, ...]:
    """Add ratios to the rows of one case: to the baseline or, if it gave no sample, to the first peer that did."""
    measured = [row for row in rows if row.status == "ok"]
    base = next((row for row in measured if row.peer == baseline), measured[0] if measured else None)
    if base is None:
        return tuple(rows)
    others = [row for row in measured if row is not base]
    spread = _between(others, base)
    rated = [_with_ratio(row, base, len(others), spread) if row.status == "ok" else row for row in rows]
    return tuple(_with_beside(row, rated, len(others), spread) for row in rated)


def update_ratios(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the same rows with ratios computed from their samples by the current code."""
    baseline = next((row.ratio.baseline for row in rows if row.ratio), None)
    return with_ratios(rows, baseline) if baseline else tuple(rows)


def _between(others: Sequence[Row], base: Row) -> stats.Between | None:
    """Return the variation between processes. It is unknown if each peer had one process, and ignored on
    accelerators."""
    spread = stats.between([stats.log_ratios(row.times(), base.times()) for row in others])
    return stats.ONE_PROCESS if spread is None and base.device == "cpu" else spread


def _with_ratio(row: Row, base: Row, comparisons: int, spread: stats.Between | None) -> Row:
    ratio = stats.paired_ratio(row.times(), base.peer, base.times(), max(1, comparisons), spread)
    return replace(row, ratio=judged(ratio, row, base))


def _with_beside(row: Row, rows: Sequence[Row], comparisons: int, spread: stats.Between | None) -> Row:
    """Add the ratio of our row to each other peer, which is what readers look for."""
    if not row.peer.startswith(OURS) or row.status != "ok":
        return row
    others = [other for other in rows if other.status == "ok" and not other.peer.startswith(OURS)]
    ratios = [_beside(row, other, comparisons, spread) for other in others]
    return replace(row, beside=tuple(ratio for ratio in ratios if ratio is not None))


def _beside(row: Row, other: Row, comparisons: int, spread: stats.Between | None) -> stats.Ratio | None:
    """Pair by round; compare peers of different groups through the baseline."""
    ratio = stats.paired_ratio(row.times(), other.peer, other.times(), max(1, comparisons), spread)
    if ratio is None and row.ratio and other.ratio:
        ratio = stats.ratio_by_way_of(row.ratio, other.ratio, other.peer)
    return judged(ratio, row, other)


def judged(ratio: stats.Ratio | None, one: Row, two: Row) -> stats.Ratio | None:
    """Return the ratio without a verdict and with the reason, if there is evidence against it."""
    if ratio is None:
        return None
    why = _disturbed(one, two) or _unsupported(ratio, one, two)
    return replace(ratio, verdict="unclear", why=why) if why else ratio


def _disturbed(one: Row, two: Row) -> str | None:
    """Whether the machine had other work and the two wait for it differently: spinning threads lose more time than
    sleeping ones.
    """
    busy = max(row.others or 0.0 for row in (one, two))
    if one.waits == two.waits or busy <= BUSY:
        return None
    return "other programs used the CPUs meanwhile, and the two peers' threads wait in different ways"


def _unsupported(ratio: stats.Ratio, one: Row, two: Row) -> str | None:
    """Whether the typical round contradicts other statistics.

    A peer may leave work to a few rounds, or make all steps of a sample together when the clock waits for it.
    """
    places = one.times().keys() & two.times().keys()
    if not places or ratio.verdict not in ("faster", "slower"):
        return None
    claimed = log((ratio.high if ratio.verdict == "faster" else ratio.low) or 1.0)
    mine, theirs = ([sample for sample in row.samples if sample.place in places] for row in (one, two))
    ratios = {"all rounds together take": fsum(s.seconds for s in mine) / fsum(s.seconds for s in theirs)}
    if all(sample.latency for sample in (*mine, *theirs)):
        ratios["steps that are waited for take"] = _median_latency(mine) / _median_latency(theirs)
    for what, other in ratios.items():
        if log(other) / claimed < SUPPORT:
            return f"{what} {other:.3g} of the time of {two.peer}, and the usual round of {one.peer} {ratio.median:.3g}"
    return None


def _median_latency(samples: Sequence[Sample]) -> float:
    return median(sample.latency or 0.0 for sample in samples)
