"""Show migration against `cp` as a table, with the goals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench.migration import page as of_migration
from bench.migration.row import Row
from bench.page import terminal
from bench.page.words import size
from bench.results.document import Result

if TYPE_CHECKING:
    from rich.console import RenderableType

LEAST_OF_COPY = 0.5
MOST_OF_MIGRATION = 2.5
MOST_INSPECTING = 1.0
MEMORY = 500_000_000
LEAST_JUDGED = 1_000_000_000
"""Goals for an input in the page cache, which depend least on the disk: half of `cp`'s throughput; `verify` in two and
a half times the time of the migration; `inspect` in a second; memory of this many bytes plus two of the largest tensor.
"""


def render(result: Result) -> list[RenderableType]:
    """Return what to print on a rich console, from top to bottom."""
    contents = of_migration.table(result)
    shown = terminal.table(contents.headings, contents.is_text)
    for line in contents.rows:
        shown.add_row(*(cell.replace("[", "\\[") for cell in line))
    parts: list[RenderableType] = [shown, ""]
    judged = [row for row in result.rows if row.status == "ok" and row.tensor_bytes >= LEAST_JUDGED]
    parts += [f"{row.format}: {'; '.join(_aims(row))}." for row in judged]
    if len(judged) < len(result.rows):
        parts.append(f"With less than {size(LEAST_JUDGED)} most of the time is the start of processes.")
    if result.context["busy"]:
        parts.append(f"[yellow]The machine was busy before the run (load {result.context['load']:.1f}).[/]")
    return parts


def _aims(row: Row) -> Iterator[str]:
    times = {command.name: command.median for command in row.commands}
    peaks = [command.peak_bytes or 0 for command in row.commands]
    longer = times["verify"] / times["migrate"]
    most = MEMORY + 2 * (row.largest_tensor_bytes or 0)
    copied = row.of_copy.median if row.of_copy else 0.0
    yield f"{copied:.2f} of cp's throughput, aim {LEAST_OF_COPY} {_met(copied >= LEAST_OF_COPY)}"
    yield f"verify {longer:.2f} times as long, aim {MOST_OF_MIGRATION:g} {_met(longer <= MOST_OF_MIGRATION)}"
    yield f"memory {size(max(peaks))}, aim {size(most)} {_met(max(peaks) <= most)}"
    yield f"inspect {times['inspect']:.2f} s, aim {MOST_INSPECTING:g} s {_met(times['inspect'] <= MOST_INSPECTING)}"


def _met(met: bool) -> str:
    return "[green]met[/]" if met else "[red]missed[/]"
