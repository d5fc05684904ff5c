"""Build the page section of `dtopt bench plan`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.forecast.row import Row
from bench.page.section import Bars, Section
from bench.page.tables import Table
from bench.page.words import duration, size
from bench.results.document import Result

MOST_PLANS = 20


def sections(result: Result) -> Iterator[Section]:
    """Show what fits, and its costs."""
    rows: Sequence[Row] = result.rows[:MOST_PLANS]
    if not rows:
        return
    first = rows[0]
    headings = (
        "mesh",
        "layout",
        "slots placed",
        "parameters",
        "gradients",
        "slots",
        "per device",
        "sent/step",
        "step",
        "",
    )
    table = Table("Plans: bytes per device and per step", headings, tuple(map(_plan_cells, rows)), text=3)
    parts = {
        "parameters": tuple(row.parameter_bytes / 1e9 for row in rows),
        "gradients": tuple(row.gradient_bytes / 1e9 for row in rows),
        "slots": tuple(sum(row.slot_bytes.values()) / 1e9 for row in rows),
        "activations": tuple((row.activation_bytes or 0) / 1e9 for row in rows),
    }
    labels = tuple(f"{row.mesh} {row.layout} {row.placement}" for row in rows)
    limit = None if first.limit_bytes is None else (first.limit_bytes / 1e9, f"limit {size(first.limit_bytes)}")
    bars = Bars("Memory per device", labels, parts, "GB on one device", stacked=True, line=limit)
    left = len(result.rows) - len(rows)
    text = (f"{first.parameters:,} {first.dtype} parameters in {first.tensors:,} tensors. Predicted, not measured.",)
    more = (f"{left} further plans are in the results file.",) if left else ()
    title = f"Plans for {first.optimizer} on {first.workload}"
    yield Section(title, text + more, (table,), (bars,), tuple(row.rerun for row in rows))


def _plan_cells(row: Row) -> tuple[str, ...]:
    sizes = (row.parameter_bytes, row.gradient_bytes, sum(row.slot_bytes.values()), row.device_bytes, row.sent_bytes)
    step = "-" if row.step_seconds is None else duration(row.step_seconds)
    words = ["best"] * row.recommended + ([] if row.fits is None else ["fits" if row.fits else "does not fit"])
    return (row.mesh, row.layout, row.placement, *map(size, sizes), step, ", ".join(words))
