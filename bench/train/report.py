"""Training as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.page import terminal
from bench.results.document import Result
from bench.train import page as of_training
from bench.train.problems import problem

if TYPE_CHECKING:
    from rich.console import RenderableType


def render(result: Result) -> list[RenderableType]:
    """What to print, from top to bottom, on a rich console."""
    from rich.text import Text

    parts: list[RenderableType] = []
    for name in dict.fromkeys(row.problem for row in result.rows):
        rows = [row for row in result.rows if row.problem == name]
        found = of_training.table(rows)
        table = terminal.table(found.headings, found.is_text, whole=2)
        for row, cells in zip(rows, found.rows, strict=True):
            table.add_row(*(Text(cell) for cell in cells), style="bold" if row.best else None)
        title = Text(name, style="bold")
        title.append(f": {problem(name).summary}; target {rows[0].target:g}", style="not bold")
        parts += [title, "", table, ""]
    parts.append("Steps: median over seeds, 95% interval, a miss counts as later than any; ratios pair seeds.")
    if result.context["busy"]:
        parts.append(
            f"[yellow]The machine was busy before the run (load {result.context['load']:.1f}):[/] believe steps."
        )
    return parts
