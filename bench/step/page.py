"""Build the page sections of `dtopt bench step`: each case with its peers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.cases.workloads import summary
from bench.page.section import Bars, Figure, Ratios, Section
from bench.page.tables import Table
from bench.results.document import Result
from bench.step import report
from bench.step.ratios import OURS
from bench.step.row import Row


def sections(result: Result) -> Iterator[Section]:
    """Yield one section per workload and optimizer."""
    for key in dict.fromkeys((row.workload, row.optimizer) for row in result.rows):
        rows = [row for row in result.rows if (row.workload, row.optimizer) == key]
        yield Section(
            f"One {key[1]} step on {key[0]}",
            tuple(_text(rows, result)),
            (table(rows),),
            tuple(_figures([row for row in rows if row.status == "ok"])),
            tuple(row.rerun for row in rows),
            answer=report.answer(rows) or "",
            first=_ratios(rows),
        )


def table(rows: Sequence[Row]) -> Table:
    """Return the rows of one case, fastest first, with the skipped and failed ones and their reasons."""
    lines = []
    events = (report.DEVICE_HEADING,) if any(row.device_seconds is not None for row in rows) else ()
    for row in sorted(rows, key=lambda row: row.median or float("inf")):
        if row.status == "ok":
            *cells, remark = (report.plain_cell(cell) for cell in report.cells(row, with_events=bool(events)))
            doubt = f"warning: {', '.join(row.warnings)}" if row.warnings else ""
            lines.append((*cells, "; ".join(word for word in (remark, doubt) if word)))
        else:
            lines.append((row.peer, row.status, *[""] * (4 + len(events)), row.reason or ""))
    base = next((row.ratio.baseline for row in rows if row.ratio), "baseline")
    headings = ("peer", "ms/step", f"vs {base}", "latency, ms", "GB/s", "of limit", *events, "")
    return Table(
        "Time of a step, its ratio to the baseline with a 95% interval, share of the memory bandwidth limit",
        headings,
        tuple(lines),
    )


def _text(rows: Sequence[Row], result: Result) -> Iterator[str]:
    row = rows[0]
    settings = report.options(row)
    yield (
        f"{summary(row.workload) or row.workload}: {row.parameters:,} {row.dtype} parameters in {row.tensors:,}"
        f" tensors; mesh {row.mesh}, layout {row.layout}, {row.device}, {row.threads} threads per peer."
        + (f" With {', '.join(settings)}." if settings else "")
    )
    roofs = [roof for roof in result.roofs if (roof.workload, roof.optimizer) == (row.workload, row.optimizer)]
    if roofs:
        yield (
            f"A step moves at least {row.bytes_per_parameter:.3g} bytes per parameter. The memory bandwidth limit is"
            f" {report.best_roof(row, roofs)}."
        )
    sentences = (report.waiting, report.hosts, report.on_device, report.device_memory)
    yield from filter(None, (sentence(rows) for sentence in sentences))


def _ratios(rows: Sequence[Row]) -> Ratios | None:
    """Plot the answer: every peer against the baseline, the fastest on top."""
    known = sorted((row for row in rows if row.ratio), key=lambda row: row.ratio.median if row.ratio else 0.0)
    ratios = [row.ratio for row in known if row.ratio]
    if len(ratios) < 2:
        return None
    base = ratios[0].baseline
    return Ratios(
        "Time of a step against the baseline, with 95% intervals",
        base,
        tuple(row.peer for row in known),
        tuple((ratio.median, ratio.low, ratio.high) for ratio in ratios),
        tuple(
            "baseline" if row.peer == base else report.judged(ratio) for row, ratio in zip(known, ratios, strict=True)
        ),
        tuple(row.peer.startswith(OURS) for row in known),
    )


def _figures(rows: Sequence[Row]) -> Iterator[Figure]:
    ordered = sorted(rows, key=lambda row: row.median or 0.0)
    labels = tuple(row.peer for row in ordered)
    if not ordered:
        return
    if any(row.roof_fraction is not None for row in ordered):
        shares = tuple(None if row.roof_fraction is None else 100 * row.roof_fraction for row in ordered)
        how = "in place" if ordered[0].device == "cpu" else "by a copy"
        yield Bars(
            "Percent of the memory bandwidth limit", labels, {"of the limit": shares}, f"% of the speed reached {how}"
        )
    times = tuple((row.median or 0.0) * 1e3 for row in ordered)
    spans = tuple(((row.median or 0.0) * 1e3 - _mad(row), (row.median or 0.0) * 1e3 + _mad(row)) for row in ordered)
    yield Bars("Time of a step", labels, {"median": times}, "ms, with the median absolute deviation", spans=spans)
    if any(row.peak_bytes or row.device_peak_bytes for row in ordered):
        on_device = any(row.device_peak_bytes for row in ordered)
        peaks = (row.device_peak_bytes if on_device else row.peak_bytes for row in ordered)
        memory = tuple(None if peak is None else peak / 1e6 for peak in peaks)
        where = "fullest device" if on_device else "process, framework included"
        yield Bars("Memory", labels, {"peak": memory}, f"MB at most, of the {where}")


def _mad(row: Row) -> float:
    return (row.mad or 0.0) * 1e3
