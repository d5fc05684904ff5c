"""Check whether a recorded run can be trusted.

`bench.check.ratios` judges its verdicts. This module judges its times, by the interval of their median, drift, outliers
and two modes. In a run with ratios, unsteady times are only a warning, because all peers of a round share the
machine's phases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf, sqrt
from statistics import fmean, median, pstdev

from bench.check import ratios
from bench.check.findings import Finding
from bench.compare.measurements import Measurement, measurements
from bench.compare.pairing import label
from bench.compare.report import USUAL
from bench.kinds import KINDS
from bench.measuring import stats
from bench.measuring.stats import UNSTEADY_IQR, VERY_UNSTEADY_IQR
from bench.results.document import Result

FEWEST = 8
"""Fewest samples to look for drift, outliers and modes."""

DRIFT = 0.10
"""Smallest reported change of the median from the first half of a run to its second."""

CERTAIN = 0.01
"""p of Kendall's test that a drift's order came by chance."""

OUTLIER = 10.0
"""Standard deviations, estimated by the median absolute deviation, beyond which hyperfine calls a sample an outlier."""

MAD_TO_DEVIATION = 1.4826

APART = 4.0
"""Ashman's D from which two groups are two modes; the halves of one normal distribution reach 2.7."""

SMALLEST_GROUP = 0.2

MORE_ON_DEVICE = 1.25
"""Largest ratio of a step's time on the GPU to its wall-clock time: the first is a part of the second."""


def check(result: Result) -> tuple[Finding, ...]:
    """Return findings that question a run; empty for a quiet one."""
    kind = KINDS[result.kind]
    results = [*_context(result), *ratios.check(result, kind)]
    if kind.reading is not None and kind.reading.unit == "s":
        compared = kind.update_ratios is not None and sum(row.status == "ok" for row in result.rows) > 1
        for measurement in measurements(result).values():
            results += [_within_a_run(finding) if compared else finding for finding in _row(measurement)]
    for row in result.rows:
        if row.status == "failed":
            results.append(Finding("warning", "failed", _where(row), f"failed: {row.reason}"))
        if getattr(row, "device_seconds", None) and row.device_seconds > MORE_ON_DEVICE * row.median:
            text = (
                f"{row.device_seconds * 1e3:.3g} ms by events of the GPU, {row.median * 1e3:.3g} ms by the wall clock"
            )
            results.append(Finding("warning", "clocks", _where(row), text))
        warm = getattr(row, "warm_up", None)
        if warm is not None and not warm.steady:
            results.append(
                Finding("warning", "warm-up", _where(row), f"not steady after {warm.steps} steps of warm-up")
            )
    return tuple(results)


def _within_a_run(finding: Finding) -> Finding:
    return replace(finding, severity="warning") if finding.severity == "noisy" else finding


def _where(row: object) -> str:
    return " ".join(str(getattr(row, name)) for name in ("workload", "optimizer", "peer", "mesh") if hasattr(row, name))


def _context(result: Result) -> Iterator[Finding]:
    context = result.context
    unseen = [row.others is None for row in result.rows if row.status == "ok" and hasattr(row, "others")]
    if len(unseen) > 1 and any(unseen) and context.get("load", 0.0) > context.get("cpus", inf):
        text = (
            f"load {context['load']:.1f}, and who used the CPUs was not seen: peers wait for others in different ways"
        )
        yield Finding("noisy", "load", "machine", text)
    if context.get("busy"):
        text = f"load {context['load']:.1f} before the run began: end other programs, then measure again"
        yield Finding("warning", "load", "machine", text)
    governor = context.get("governor")
    if governor not in (None, "performance"):
        yield Finding(
            "information", "frequency", "machine", f"the frequency governor is {governor!r}: clocks may change"
        )
    if result.interrupted:
        yield Finding("warning", "interrupted", "run", "Ctrl-C ended it early")


def _row(measurement: Measurement) -> Iterator[Finding]:
    times, where = measurement.values, label(measurement.name, USUAL)
    edges = stats.interval(times)
    width = max(edges[1] / median(times), median(times) / edges[0]) - 1 if edges else 0.0
    if width > UNSTEADY_IQR:
        severity = "noisy" if width > VERY_UNSTEADY_IQR else "warning"
        yield Finding(severity, "spread", where, f"the median is known within {width:.0%} only")
    if len(times) < FEWEST:
        return
    change = drift(times)
    if change is not None:
        yield Finding("noisy", "drift", where, f"{change:+.0%} from the first half of the run to the second")
    far = outliers(times)
    if far:
        shown = ", ".join(f"{times[i] / median(times):.1f}x the median (sample {i})" for i in far[:3])
        severity = "noisy" if len(far) > len(times) / 10 else "warning"
        yield Finding(severity, "outliers", where, f"{len(far)} of {len(times)} samples: {shown}")
    modes = two_modes(times)
    if modes:
        text = f"two speeds: {modes[0] * 1e3:.3g} ms and {modes[1] * 1e3:.3g} ms; a median of both is neither"
        yield Finding("noisy", "modes", where, text)


def drift(times: Sequence[float]) -> float | None:
    """Return the relative change of the median between the halves; None if it is small or may be chance."""
    from scipy.stats import kendalltau

    half = len(times) // 2
    change = median(times[half:]) / median(times[:half]) - 1
    if abs(change) < DRIFT:
        return None
    chance = kendalltau(range(len(times)), times).pvalue
    return change if chance < CERTAIN else None


def outliers(times: Sequence[float]) -> list[int]:
    """Return which samples are further from the median than OUTLIER deviations."""
    middle, deviation = median(times), MAD_TO_DEVIATION * stats.median_absolute_deviation(times)
    return [i for i, value in enumerate(times) if deviation and abs(value - middle) > OUTLIER * deviation]


def two_modes(times: Sequence[float]) -> tuple[float, float] | None:
    """Return the means of two groups that are separate by Ashman's D (1994) and by a tenth, or None."""
    ordered = sorted(times)
    least = max(3, round(SMALLEST_GROUP * len(ordered)))
    best, modes = APART, None
    for cut in range(least, len(ordered) - least + 1):
        low, high = ordered[:cut], ordered[cut:]
        spread = sqrt((pstdev(low) ** 2 + pstdev(high) ** 2) / 2)
        distance = fmean(high) - fmean(low)
        if distance > best * spread and distance > UNSTEADY_IQR * median(ordered):
            best, modes = (distance / spread if spread else best), (fmean(low), fmean(high))
    return modes
