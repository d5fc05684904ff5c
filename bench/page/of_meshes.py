"""The sections of `dtopt bench scale`, `plan` and `roof`: meshes, what they hold and send, and the machine's speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench import plan_row, scale_row
from bench.forecast.report import size
from bench.page.section import Bars, Figure, Section
from bench.page.tables import Table
from bench.results import Result

MOST_PLANS = 20


def scaling(result: Result) -> Iterator[Section]:
    """Time, efficiency and memory of each mesh."""
    rows: Sequence[scale_row.Row] = result.rows
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


def _scale_cells(row: scale_row.Row) -> tuple[str, ...]:
    sent = size(row.predicted_sent_bytes if row.clients > 1 else row.device_sent_bytes)
    measured = "-" if row.measured_sent_bytes is None else size(round(row.measured_sent_bytes))
    head = (row.mesh, str(row.clients), size(row.device_bytes), sent, measured)
    if row.status != "ok":
        return (*head, "", "", f"{row.status}: {row.reason}")
    e = row.efficiency
    shown = "-" if e is None else f"{e.median:.0%} [{e.low:.0%}, {e.high:.0%}]"
    return (*head, f"{(row.median or 0) * 1e3:.3g} ±{(row.mad or 0) * 1e3:.2g}", shown, "")


def _scale_figures(rows: Sequence[scale_row.Row]) -> Iterator[Figure]:
    if not rows:
        return
    labels = tuple(row.mesh for row in rows)
    reached = tuple(None if row.efficiency is None else 100 * row.efficiency.median for row in rows)
    spans = tuple((100 * row.efficiency.low, 100 * row.efficiency.high) if row.efficiency else None for row in rows)
    yield Bars("Efficiency", labels, {"efficiency": reached}, "% of ideal, with 95% intervals", spans=spans)
    parts = {
        "parameters": tuple(row.parameter_bytes / 1e6 for row in rows),
        "slots": tuple(row.slot_bytes / 1e6 for row in rows),
        "gradients": tuple((row.device_bytes - row.parameter_bytes - row.slot_bytes) / 1e6 for row in rows),
    }
    yield Bars("Memory per device", labels, parts, "MB on one device", stacked=True)


def plans(result: Result) -> Iterator[Section]:
    """What fits, and what it costs."""
    rows: Sequence[plan_row.Row] = result.rows[:MOST_PLANS]
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
    }
    labels = tuple(f"{row.mesh} {row.layout} {row.placement}" for row in rows)
    limit = None if first.limit_bytes is None else (first.limit_bytes / 1e9, f"limit {size(first.limit_bytes)}")
    bars = Bars("Memory per device", labels, parts, "GB on one device", stacked=True, line=limit)
    left = len(result.rows) - len(rows)
    text = (f"{first.parameters:,} {first.dtype} parameters in {first.tensors:,} tensors. Predicted, not measured.",)
    more = (f"{left} further plans are in the results file.",) if left else ()
    title = f"Plans for {first.optimizer} on {first.workload}"
    yield Section(title, text + more, (table,), (bars,), tuple(row.rerun for row in rows))


def _plan_cells(row: plan_row.Row) -> tuple[str, ...]:
    sizes = (row.parameter_bytes, row.gradient_bytes, sum(row.slot_bytes.values()), row.device_bytes, row.sent_bytes)
    step = "-" if row.step_seconds is None else f"{row.step_seconds * 1e3:.3g} ms"
    words = ["best"] * row.recommended + ([] if row.fits is None else ["fits" if row.fits else "does not fit"])
    return (row.mesh, row.layout, row.placement, *map(size, sizes), step, ", ".join(words))


def roofs(result: Result) -> Iterator[Section]:
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
