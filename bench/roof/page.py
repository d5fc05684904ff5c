"""Build the page section of `dtopt bench roof`."""

from __future__ import annotations

from collections.abc import Iterator

from bench.page.section import Bars, Section
from bench.page.tables import Table
from bench.page.words import size
from bench.results.document import Result
from bench.roof import report


def sections(result: Result) -> Iterator[Section]:
    """Show how fast memory moves."""
    headings = ("pattern", "threads", "working set", "GB/s", "")
    lines = tuple(
        (row.pattern, str(row.threads), size(row.working_set), f"{row.bytes_per_second / 1e9:.1f}", row.regime)
        for row in result.rows
    )
    is_copy = any(row.device == "gpu" for row in result.rows)
    title = "Memory speed of a copy on the GPU" if is_copy else "Memory speed in place"
    labels = tuple(f"{row.pattern}, {row.threads} threads, {row.regime}" for row in result.rows)
    speeds = tuple(row.bytes_per_second / 1e9 for row in result.rows)
    figures = (Bars(title, labels, {"speed": speeds}, "GB/s, best sample"),) if labels else ()
    table = Table(title, headings, lines)
    text = (f"{report.device(result.context['gpu'])}.",) if "gpu" in result.context else ()
    yield Section("Memory bandwidth limit", text, (table,), figures, tuple(row.rerun for row in result.rows))
