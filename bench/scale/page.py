"""Build the page section of `dtopt bench scale`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.page.section import Bars, Figure, Section
from bench.page.tables import Table
from bench.page.words import size, with_interval
from bench.results.document import Result
from bench.scale.row import Row


def sections(result: Result) -> Iterator[Section]:
    """Show time, efficiency and memory of each mesh."""
    rows: Sequence[Row] = result.rows
    if not rows:
        return
    first = rows[0]
    headings = ("mesh", "clients", "per device", "sent", "measured", "ms/step", "efficiency", "")
    table = Table(
        "Meshes: bytes per device, bytes sent per step predicted and measured, time, efficiency",
        headings,
        tuple(map(_scale_cells, rows)),
    )
    title = f"{first.scaling.capitalize()} scaling of {first.optimizer} on {first.workload}"
    text = f"Layout {first.layout}, slots {first.placement}, {first.device}."
    figures = tuple(_scale_figures([row for row in rows if row.status == "ok"]))
    yield Section(title, (text,), (table,), figures, tuple(row.rerun for row in rows))


def _scale_cells(row: Row) -> tuple[str, ...]:
    sent = size(row.predicted_sent_bytes if row.clients > 1 else row.device_sent_bytes)
    measured = "-" if row.measured_sent_bytes is None else size(round(row.measured_sent_bytes))
    head = (row.mesh, str(row.clients), size(row.device_bytes), sent, measured)
    if row.status != "ok":
        return (*head, "", "", f"{row.status}: {row.reason}")
    e = row.efficiency
    shown = "-" if e is None else with_interval(e.median, e.low, e.high, "{:.0%}")
    return (*head, f"{(row.median or 0) * 1e3:.3g} ±{(row.mad or 0) * 1e3:.2g}", shown, "")


def _scale_figures(rows: Sequence[Row]) -> Iterator[Figure]:
    if not rows:
        return
    labels = tuple(row.mesh for row in rows)
    reached = tuple(None if row.efficiency is None else 100 * row.efficiency.median for row in rows)
    spans = tuple(_span(row) for row in rows)
    yield Bars("Efficiency", labels, {"efficiency": reached}, "% of ideal, with 95% intervals", spans=spans)
    parts = {
        "parameters": tuple(row.parameter_bytes / 1e6 for row in rows),
        "slots": tuple(row.slot_bytes / 1e6 for row in rows),
        "gradients": tuple((row.device_bytes - row.parameter_bytes - row.slot_bytes) / 1e6 for row in rows),
    }
    yield Bars("Memory per device", labels, parts, "MB on one device", stacked=True)


def _span(row: Row) -> tuple[float, float] | None:
    e = row.efficiency
    return None if e is None or e.low is None or e.high is None else (100 * e.low, 100 * e.high)
