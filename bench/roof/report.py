"""Show measured memory bandwidth limits as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bench.measuring import accelerators
from bench.page import terminal
from bench.results.document import Result
from bench.roof.row import Row

if TYPE_CHECKING:
    from rich.console import RenderableType


def render(result: Result) -> list[RenderableType]:
    """Return what to print on a rich console, from top to bottom."""
    return [_table(result), "", *_conclusions(result)]


def _table(result: Result) -> RenderableType:
    events = ("by events",) if any(row.device_seconds is not None for row in result.rows) else ()
    table = terminal.table(("pattern", "threads", "working set", "memory", "GB/s", "median", *events))
    for row in result.rows:
        table.add_row(*_cells(row, bool(events)))
    return table


def _cells(row: Row, with_events: bool) -> tuple[str, ...]:
    size = f"{row.working_set / 1e6:,.1f} MB"
    seconds = (row.median, *((row.device_seconds,) if with_events else ()))
    speeds = ("-" if divisor is None else f"{row.bytes_per_step / divisor / 1e9:.1f}" for divisor in seconds)
    return row.pattern, str(row.threads), size, row.regime, f"{row.bytes_per_second / 1e9:.1f}", *speeds


def device(facts: Mapping[str, Any]) -> str:
    """Describe the name of a GPU, its memory and its clocks. `facts` as `optim.native.driver.Facts`."""
    clocks = ((facts["clock"], "at most {} MHz"), (facts["memory_clock"], "memory at {} MHz"))
    known = [text.format(f"{rate / 1e6:,.0f}") for rate, text in clocks if rate]
    return ", ".join([facts["name"], f"{facts['memory'] / 1e9:.1f} GB", *known])


def peak(facts: Mapping[str, Any]) -> float | None:
    """Return the peak bytes per second, two transfers per clock cycle of the memory; None if the driver does not know
    them."""
    rate, width = facts["memory_clock"], facts["bus_width"]
    return 2 * rate * width / 8 if rate and width else None


def _conclusions(result: Result) -> Iterator[RenderableType]:
    context = result.context
    if result.roofs:
        best = max(result.roofs, key=lambda roof: roof.bytes_per_second)
        where = device(context["gpu"]) if "gpu" in context else f"{context['cpu']}, {context['threads']} threads"
        yield (
            f"Memory bandwidth limit of {where}: {best.bytes_per_second / 1e9:.1f} GB/s"
            f" ({best.name.removeprefix('roof: ')}), the best of {len(best.samples)} samples."
        )
        limit = peak(context["gpu"]) if "gpu" in context else None
        if limit:
            share = best.bytes_per_second / limit
            yield f"By clock and width the memory moves {limit / 1e9:,.0f} GB/s, of which a copy reaches {share:.0%}."
    yield from filter(
        None, [accelerators.sentence(context.get("accelerators", ()), context.get("accelerators_after", ()))]
    )
    for row in result.rows:
        yield from (f"[yellow]{row.pattern}, {row.threads} threads, {row.regime}:[/] {text}" for text in row.warnings)
    if context["busy"]:
        yield f"[yellow]The machine was busy before the run (load {context['load']:.1f}):[/] these speeds are too low."
    if result.interrupted:
        yield "[yellow]Interrupted:[/] only what was measured until then is shown."
