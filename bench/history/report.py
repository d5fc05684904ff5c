"""Show a history: each row's trend in a table, and its changes in words; also as the section of a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bench.compare.pairing import common, short
from bench.history.changes import FEWEST, Change
from bench.history.trend import Point, Trend
from bench.page import terminal
from bench.page.section import Lines, Section
from bench.page.tables import Table
from bench.page.words import with_interval
from bench.results.document import SCHEMA_VERSION
from bench.results.records import plain

if TYPE_CHECKING:
    from rich.console import RenderableType

UNITS = {"roofs": "times the memory bandwidth limit", "s": "ms", "steps": "steps"}
HEADINGS = ("row", "runs", "first", "last", "unit", "changes")


def document(trends: Sequence[Trend]) -> dict[str, Any]:
    """Return the output of `dtopt bench history --json`."""
    records = [{**plain(trend), "name": dict(trend.name)} for trend in trends]
    return {"kind": "dtopt bench history", "schema_version": SCHEMA_VERSION, "trends": records}


def render(trends: Sequence[Trend]) -> list[RenderableType]:
    """Return what to print on a rich console, from top to bottom."""
    from rich.markup import escape

    table = terminal.table(HEADINGS[:-1], lambda number: number not in (1, 2, 3))
    for line in _lines(trends):
        table.add_row(*map(escape, line[:-1]))
    shared = common([trend.name for trend in trends])
    return [*([f"Of each: {escape(shared)}."] if shared else []), table, "", *map(escape, sentences(trends))]


def sentences(trends: Sequence[Trend]) -> Iterator[str]:
    """Yield the changes, one a line, and the unclear rows."""
    for trend, name in zip(trends, _names(trends), strict=True):
        for change in trend.changes:
            yield f"{name}: {words(trend, change)}"
    if not any(trend.changes for trend in trends):
        yield "No change for good was found."
    few = sum(len(trend.points) < FEWEST for trend in trends)
    if few:
        yield f"{few} of {len(trends)} have fewer than {FEWEST} runs, too few to distinguish a change from noise."


def words(trend: Trend, change: Change) -> str:
    """Describe a change, such as `12% slower since 0123456789 (run 7, 2026-01-01)`; also name the last run before
    it."""
    first, before = trend.points[change.at], trend.points[change.at - 1]
    more = change.factor - 1
    how = (
        f"{abs(more):.0%} {'more' if trend.unit == 'steps' else 'slower'}"
        if more > 0
        else f"{-more:.0%} " + ("fewer" if trend.unit == "steps" else "less time")
    )
    return f"{how} since {first.commit} (run {first.run}, {first.started[:10]}); before it {before.commit}"


def sections(trends: Sequence[Trend]) -> Iterator[Section]:
    """Build the page: the changes, a curve for each row relative to its first run, and every value."""
    names = _names(trends)
    machines = list(dict.fromkeys(trend.machine for trend in trends))
    for number, machine in enumerate(machines, 1):
        of_it = [(t, n) for t, n in zip(trends, names, strict=True) if t.machine == machine]
        mine = [trend for trend, _ in of_it]
        curves = {name: [(p.run, p.value / t.points[0].value) for p in t.points] for t, name in of_it}
        figure = Lines("Time of each run over that of the first", curves, "run", "ratio to the first run")
        title = "Trend" if len(machines) == 1 else f"Trend on machine {number} of {len(machines)}"
        answer, *rest = sentences(mine)
        tables = (Table("Rows, oldest run to newest", HEADINGS, tuple(_lines(mine))), _runs(mine))
        yield Section(title, (f"Machine {machine}.", *rest), tables, (), (), answer, figure)


def _runs(trends: Sequence[Trend]) -> Table:
    """List the commit of each run."""
    points: dict[int, Point] = {point.run: point for trend in trends for point in trend.points}
    lines = tuple((str(n), p.commit, p.started[:16].replace("T", " "), p.file) for n, p in sorted(points.items()))
    return Table("Runs", ("run", "commit", "started", "file"), lines, text=4)


def _lines(trends: Sequence[Trend]) -> Iterator[tuple[str, ...]]:
    for trend, name in zip(trends, _names(trends), strict=True):
        first, last = (_value(trend, point) for point in (trend.points[0], trend.points[-1]))
        changes = "; ".join(words(trend, change) for change in trend.changes)
        yield name, str(len(trend.points)), first, last, UNITS[trend.unit], changes


def _value(trend: Trend, point: Point) -> str:
    scale = 1e3 if trend.unit == "s" else 1.0
    low, high = (None if edge is None else edge * scale for edge in (point.low, point.high))
    return with_interval(point.value * scale, low, high, "{:.3g}")


def _names(trends: Sequence[Trend]) -> list[str]:
    """Return short names, with the machine if there are several."""
    names, machines = short([trend.name for trend in trends]), {trend.machine for trend in trends}
    return names if len(machines) == 1 else [f"{n} on {t.machine}" for n, t in zip(names, trends, strict=True)]
