"""The section of `dtopt bench roof`."""

from __future__ import annotations

from collections.abc import Iterator

from bench.page.section import Bars, Section
from bench.page.tables import Table
from bench.page.words import size
from bench.results.document import Result


def sections(result: Result) -> Iterator[Section]:
    """How fast memory moves."""
    headings = ("pattern", "threads", "working set", "GB/s", "")
    lines = tuple(
        (row.pattern, str(row.threads), size(row.working_set), f"{row.bytes_per_second / 1e9:.1f}", row.regime)
        for row in result.rows
    )
    labels = tuple(f"{row.pattern}, {row.threads} threads, {row.regime}" for row in result.rows)
    speeds = tuple(row.bytes_per_second / 1e9 for row in result.rows)
    figures = (Bars("Memory speed in place", labels, {"speed": speeds}, "GB/s, best sample"),) if labels else ()
    table = Table("Memory speed in place", headings, lines)
    yield Section("Roofs of this machine", (), (table,), figures, tuple(row.rerun for row in result.rows))
