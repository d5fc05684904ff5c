"""Check the verdicts of a run: that one peer is faster than another, slower, or the same.

A verdict depends on an interval, not on the spread of single samples: noise makes the interval wider, and a wide one
means "unclear", which misleads no reader. These checks find problems that an interval from rounds cannot show: the
ratio drifted during the run, processes of one peer differ, or there are two kinds of rounds, so that the typical round
is not typical of a long run. And the samples must support the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from statistics import fmean, median
from typing import Any

from bench.check.findings import Finding
from bench.measuring import stats
from bench.results.document import Result
from bench.results.kind import Kind

LIKELY, CERTAIN = 0.1, 0.01
"""p of Kendall's test, or of Kruskal and Wallis's, that an order or a difference is chance: if it would reverse the
verdict, and if not. Several ratios share the p of an order.
"""

FEWEST = 8
"""Fewest rounds to look for an order among them."""

ENOUGH = 5
"""Processes from which 19 of 20 runs show a property that every second process has."""

Edges = tuple[float, float]
"""Logarithms of an interval's edges."""


def check(result: Result, kind: Kind) -> Iterator[Finding]:
    """Return findings against the verdicts of a result, and about the ratios without a verdict."""
    if kind.update_ratios is None or kind.reading is None:
        return
    for rows in _cases(result.rows, [name for name in kind.reading.name if name != "peer"]):
        times = {row.peer: row.times() for row in rows if row.status == "ok"}
        for row, again in zip(rows, kind.update_ratios(rows), strict=True):
            ratios = _by_baseline(again)
            for ratio in _by_baseline(row).values():
                if ratio.baseline != row.peer and ratio.verdict != "unclear":
                    logs = stats.log_ratios(times[row.peer], times[ratio.baseline])
                    where = f"{row.workload} {row.optimizer}: {row.peer} against {ratio.baseline}"
                    yield from of_verdict(ratio.verdict, ratios.get(ratio.baseline), logs, where, len(times) - 1)
        yield from _without_verdict(rows)


def _by_baseline(row: Any) -> dict[str, stats.Ratio]:
    return {ratio.baseline: ratio for ratio in (row.ratio, *row.beside) if ratio}


def _cases(rows: Sequence[Any], names: Sequence[str]) -> Iterator[list[Any]]:
    keys = [tuple(getattr(row, name) for name in names) for row in rows]
    for key in dict.fromkeys(keys):
        yield [row for row, its in zip(rows, keys, strict=True) if its == key]


def of_verdict(
    claim: str, ratio: stats.Ratio | None, logs: Mapping[stats.Place, float], where: str, comparisons: int = 1
) -> Iterator[Finding]:
    """Return findings against one verdict.

    Args:
      claim: "faster", "slower" or "same"; ratio: from the samples; logs: `stats.log_ratios` of them; comparisons:
        number of ratios in the result, which share the error probability.
    """
    if ratio is None or ratio.low is None or ratio.high is None or ratio.verdict != claim:
        now = "have no interval" if ratio is None or ratio.low is None else f"show {ratio.verdict}, {_of(ratio)}"
        yield Finding("noisy", "verdict", where, f"it is called {claim}, but its samples {now}")
        return
    edges = log(ratio.low), log(ratio.high)
    if not logs:  # through the baseline
        return
    yield from _drift([logs[place] for place in sorted(logs)], claim, edges, where, _of(ratio), comparisons)
    yield from _processes(logs, claim, where, _of(ratio))
    yield from _kinds(list(logs.values()), claim, edges, where)


def _of(ratio: stats.Ratio) -> str:
    return f"{ratio.median:.3g} [{ratio.low:.3g}, {ratio.high:.3g}]"


def _drift(
    values: Sequence[float], claim: str, edges: Edges, where: str, shown: str, comparisons: int
) -> Iterator[Finding]:
    """Check the steepest line within Theil and Sen's slope, at both ends of the run, and the median of either half."""
    from scipy.stats import kendalltau, theilslopes

    if len(values) < FEWEST:
        return
    chance, half = kendalltau(range(len(values)), values).pvalue, len(values) // 2
    _, _, *slopes = theilslopes(values)  # both ends of the slope's interval
    ends = [median(values) + slope * side * (len(values) - 1) / 2 for slope in slopes for side in (-1, 1)]
    turned = any(_contradicts(claim, end) for end in ends)
    early, late = median(values[:half]), median(values[half:])
    outside = any(not edges[0] <= middle <= edges[1] for middle in (early, late))
    if chance < (LIKELY if turned else CERTAIN) / comparisons and (turned or outside):
        text = f"{exp(early):.3g} in the first half of the run, {exp(late):.3g} in the second, but it reports {shown}"
        yield Finding("noisy", "drift", where, text)


def _processes(logs: Mapping[stats.Place, float], claim: str, where: str, shown: str) -> Iterator[Finding]:
    from scipy.stats import kruskal

    by_process: dict[int, list[float]] = {}
    for (_, _, process), value in logs.items():
        by_process.setdefault(process, []).append(value)
    middles = [median(values) for values in by_process.values()]
    turned = [exp(middle) for middle in middles if _contradicts(claim, middle)]
    if turned and max(middles) > min(middles) and kruskal(*by_process.values()).pvalue < CERTAIN:
        text = f"not all of its processes are {claim}: one has {turned[0]:.3g}, but it reports {shown}"
        yield Finding("warning", "processes", where, text)


def _kinds(values: Sequence[float], claim: str, edges: Edges, where: str) -> Iterator[Finding]:
    mean = fmean(values)
    if not edges[0] <= mean <= edges[1]:
        text = f"rounds are of two kinds: the usual one is {claim}, and their mean ratio is {exp(mean):.3g}"
        yield Finding("noisy" if _contradicts(claim, mean) else "warning", "modes", where, text)


def _contradicts(claim: str, value: float) -> bool:
    """Whether the logarithm of a ratio contradicts a verdict."""
    return {"faster": value >= 0, "slower": value <= 0, "same": abs(value) > 2 * log(1 + stats.SAME)}[claim]


def _without_verdict(rows: Sequence[Any]) -> Iterator[Finding]:
    """Report ratios without a verdict, and ratios from a single process."""
    ratios = [row.ratio for row in rows if row.status == "ok" and row.ratio and row.ratio.baseline != row.peer]
    where = f"{rows[0].workload} {rows[0].optimizer}"
    bare = [ratio for ratio in ratios if ratio.low is None]
    if bare:
        text = f"{len(bare)} of {len(ratios)} have no interval, for rounds were too few, and no verdict"
        yield Finding("information", "ratios", where, text)
    unclear = [ratio for ratio in ratios if ratio.low is not None and ratio.verdict == "unclear"]
    if unclear:
        yield Finding("information", "ratios", where, f"{len(unclear)} of {len(ratios)} are unclear")
    fewest = min((ratio.processes for ratio in ratios), default=ENOUGH)
    if fewest < ENOUGH:
        many = "one process" if fewest == 1 else f"{fewest} processes"
        text = f"{many} of each peer: a slowness that every second process has is missed in 1 of {2**fewest} runs"
        yield Finding("information", "processes", where, text)
