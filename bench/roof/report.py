"""Measured roofs as a table for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench.page import terminal
from bench.results.document import Result
from bench.roof.row import Row

if TYPE_CHECKING:
    from rich.console import RenderableType


def render(result: Result) -> list[RenderableType]:
    """What to print, from top to bottom, on a rich console."""
    return [_table(result), "", *_conclusions(result)]


def _table(result: Result) -> RenderableType:
    table = terminal.table(("pattern", "threads", "working set", "memory", "GB/s", "median"))
    for row in result.rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> tuple[str, ...]:
    middle = row.bytes_per_step / row.median / 1e9
    size = f"{row.working_set / 1e6:,.1f} MB"
    return row.pattern, str(row.threads), size, row.regime, f"{row.bytes_per_second / 1e9:.1f}", f"{middle:.1f}"


def _conclusions(result: Result) -> Iterator[RenderableType]:
    context = result.context
    if result.roofs:
        best = max(result.roofs, key=lambda roof: roof.bytes_per_second)
        yield (
            f"Roof of {context['cpu']}, {context['threads']} threads: {best.bytes_per_second / 1e9:.1f} GB/s"
            f" ({best.name.removeprefix('roof: ')}), the best of {len(best.samples)} samples."
        )
    for row in result.rows:
        yield from (f"[yellow]{row.pattern}, {row.threads} threads, {row.regime}:[/] {text}" for text in row.warnings)
    if context["busy"]:
        yield f"[yellow]The machine was busy before the run (load {context['load']:.1f}):[/] these speeds are too low."
    if result.interrupted:
        yield "[yellow]Interrupted:[/] only what was measured until then is shown."
