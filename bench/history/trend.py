"""The runs of a history as one series for each row and machine, and the changes in it.

Values are ratios within a run if the run has a measure that no version of dtopt changes. So a row of steps is measured
in units of the memory bandwidth limits, numpy code timed in the same rounds, as in `compare`. Others are in seconds, or
steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log
from statistics import fmean, median

from bench.compare.measurements import Measurement, Name, measurements
from bench.errors import IncomparableError
from bench.history.changes import Change, changes
from bench.measuring import stats
from bench.results.document import Result

Named = Sequence[tuple[str, Result]]
"""(name of the file, its contents)."""


@dataclass(frozen=True)
class Point:
    """One run's value of a row.

    Attributes: run, its number from 1; file; commit that was measured, or the version; started; value, median, with the
      95% interval low to high, None with too few rounds.
    """

    run: int
    file: str
    commit: str
    started: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Trend:
    """One row through the runs of one machine.

    Attributes: kind; name of the row; machine; unit: "roofs", "s" or "steps"; points in the order of time; changes, by
      the place of their first point.
    """

    kind: str
    name: Name
    machine: str
    unit: str
    points: tuple[Point, ...]
    changes: tuple[Change, ...]


def trends(results: Named) -> list[Trend]:
    """Return the trends of results of any kinds and machines.

    Raises: IncomparableError if they contain no measurement.
    """
    ordered = sorted(results, key=lambda pair: str(pair[1].context.get("started", "")))
    rows: dict[tuple[str, str, Name], list[tuple[int, str, Result, Measurement]]] = {}
    for number, (file, result) in enumerate(ordered, 1):
        for name, row in measurements(result).items():
            if row.status == "ok" and row.values and row.median is not None:
                key = result.kind, _machine(result), (*name, *row.version)
                rows.setdefault(key, []).append((number, file, result, row))
    if not rows:
        raise IncomparableError("these results hold no row that was measured")
    return [_trend(*key, lines) for key, lines in rows.items()]


def _trend(kind: str, machine: str, name: Name, lines: Sequence[tuple[int, str, Result, Measurement]]) -> Trend:
    roofs = frozenset.intersection(*(frozenset(row.roofs) for *_, row in lines))
    points = tuple(_point(number, file, result, row, roofs) for number, file, result, row in lines)
    unit = "roofs" if roofs else lines[0][3].unit
    size = len(lines[0][3].version)
    return Trend(kind, name[: len(name) - size], machine, unit, points, tuple(changes([p.value for p in points])))


def _point(number: int, file: str, result: Result, row: Measurement, roofs: Iterable[str]) -> Point:
    units = [fmean(map(log, times)) for times in zip(*(row.roofs[name] for name in roofs), strict=True)]
    values = [a / exp(b) for a, b in zip(row.values, units, strict=True)] if units else list(row.values)
    interval = stats.interval(values)
    low, high = interval if interval and all(map(isfinite, interval)) else (None, None)
    return Point(number, file, commit(result), str(result.context.get("started", "")), median(values), low, high)


def commit(result: Result) -> str:
    """Return the commit of dtopt that was measured, or its version."""
    context = result.context
    return str(context.get("source", {}).get("commit") or context.get("packages", {}).get("dtopt") or "unknown")


def _machine(result: Result) -> str:
    """Return the members that must agree to compare times; older results record fewer."""
    context = result.context
    return str(context.get("identity") or f"{context.get('cpu')}, {context.get('cpus')} CPUs")
