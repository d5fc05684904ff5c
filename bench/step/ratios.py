"""The ratios of the rows of one case, from their samples alone: when measured, and whenever they are judged anew."""

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
"""Part of what a verdict claims at the least that other sums of the same samples must show."""

BUSY = 0.2
"""CPUs that other programs use from which a machine is not quiet."""


def with_ratios(rows: Sequence[Row], baseline: str) -> tuple[Row, ...]:
    """The rows of one case with ratios to the baseline or, where it gave no sample, to the first peer that did."""
    measured = [row for row in rows if row.status == "ok"]
    base = next((row for row in measured if row.peer == baseline), measured[0] if measured else None)
    if base is None:
        return tuple(rows)
    others = [row for row in measured if row is not base]
    spread = _between(others, base)
    found = [_with_ratio(row, base, len(others), spread) if row.status == "ok" else row for row in rows]
    return tuple(_with_beside(row, found, len(others), spread) for row in found)


def anew(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The same rows with the ratios that their samples give today."""
    said = next((row.ratio.baseline for row in rows if row.ratio), None)
    return with_ratios(rows, said) if said else tuple(rows)


def _between(others: Sequence[Row], base: Row) -> stats.Between | None:
    """What processes differ by. Nobody has seen it where each peer had one; on accelerators it is not looked for."""
    found = stats.between([stats.log_ratios(row.times(), base.times()) for row in others])
    return stats.ONE_PROCESS if found is None and base.device == "cpu" else found


def _with_ratio(row: Row, base: Row, comparisons: int, spread: stats.Between | None) -> Row:
    ratio = stats.paired_ratio(row.times(), base.peer, base.times(), max(1, comparisons), spread)
    return replace(row, ratio=judged(ratio, row, base))


def _with_beside(row: Row, rows: Sequence[Row], comparisons: int, spread: stats.Between | None) -> Row:
    """Adds what a row of ours takes of the time of each other peer: the answer that people come for."""
    if not row.peer.startswith(OURS) or row.status != "ok":
        return row
    others = [other for other in rows if other.status == "ok" and not other.peer.startswith(OURS)]
    ratios = [_beside(row, other, comparisons, spread) for other in others]
    return replace(row, beside=tuple(ratio for ratio in ratios if ratio is not None))


def _beside(row: Row, other: Row, comparisons: int, spread: stats.Between | None) -> stats.Ratio | None:
    """Paired by round; peers of different groups by way of the baseline."""
    ratio = stats.paired_ratio(row.times(), other.peer, other.times(), max(1, comparisons), spread)
    if ratio is None and row.ratio and other.ratio:
        ratio = stats.ratio_by_way_of(row.ratio, other.ratio, other.peer)
    return judged(ratio, row, other)


def judged(ratio: stats.Ratio | None, one: Row, two: Row) -> stats.Ratio | None:
    """A ratio without a verdict, and why, where something speaks against it."""
    if ratio is None:
        return None
    why = _disturbed(one, two) or _unsupported(ratio, one, two)
    return replace(ratio, verdict="unclear", why=why) if why else ratio


def _disturbed(one: Row, two: Row) -> str | None:
    """Where the machine had other work and the two wait for it in different ways: spinning threads lose time to it that
    sleeping ones do not."""
    busy = max(row.others or 0.0 for row in (one, two))
    if one.waits == two.waits or busy <= BUSY:
        return None
    return "other programs used the CPUs meanwhile, and the two peers' threads wait in different ways"


def _unsupported(ratio: stats.Ratio, one: Row, two: Row) -> str | None:
    """Where the usual round is not what others say: a peer may leave work to a few rounds, or make the steps of a
    sample together when it is waited for."""
    places = one.times().keys() & two.times().keys()
    if not places or ratio.verdict not in ("faster", "slower"):
        return None
    claimed = log((ratio.high if ratio.verdict == "faster" else ratio.low) or 1.0)
    mine, theirs = ([sample for sample in row.samples if sample.place in places] for row in (one, two))
    found = {"all rounds together take": fsum(s.seconds for s in mine) / fsum(s.seconds for s in theirs)}
    if all(sample.latency for sample in (*mine, *theirs)):
        found["steps that are waited for take"] = _median_latency(mine) / _median_latency(theirs)
    for what, other in found.items():
        if log(other) / claimed < SUPPORT:
            return f"{what} {other:.3g} of the time of {two.peer}, and the usual round of {one.peer} {ratio.median:.3g}"
    return None


def _median_latency(samples: Sequence[Sample]) -> float:
    return median(sample.latency or 0.0 for sample in samples)
