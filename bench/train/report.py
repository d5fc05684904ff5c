"""Show training as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.page import terminal
from bench.results.document import Result
from bench.train import page as of_training
from bench.train.problems import problem
from bench.train.row import Row

if TYPE_CHECKING:
    from rich.console import RenderableType


SHORT = {"learning rate": "rate", "steps to target": "steps"}
"""Headings for little space."""


def render(result: Result) -> list[RenderableType]:
    """Return what to print on a rich console, from top to bottom."""
    from rich.text import Text

    parts: list[RenderableType] = []
    for name in dict.fromkeys(row.problem for row in result.rows):
        rows = [row for row in result.rows if row.problem == name]
        meshes = dict.fromkeys(row.mesh for row in rows)
        title = Text(name, style="bold")
        title.append(f": {problem(name).summary}; target {rows[0].target:g}", style="not bold")
        title.append(f"; mesh {rows[0].mesh}" if len(meshes) == 1 else "", style="not bold")
        parts += [title, "", _table(rows, len(meshes) > 1), ""]
    parts.append("Steps to the target: median over seeds, 95% interval; a miss is later than any; ratios pair seeds.")
    if result.context["busy"]:
        parts.append(
            f"[yellow]The machine was busy before the run (load {result.context['load']:.1f}):[/] trust only the steps."
        )
    return parts


def _table(rows: Sequence[Row], with_meshes: bool) -> RenderableType:
    from rich.text import Text

    contents = of_training.table(rows)
    columns = [i for i, heading in enumerate(contents.headings) if heading != "mesh" or with_meshes]
    headings = [SHORT.get(contents.headings[i], contents.headings[i]) for i in columns]
    table = terminal.table(headings, lambda column: contents.is_text(columns[column]), whole=2)
    for row, cells in zip(rows, contents.rows, strict=True):
        table.add_row(*(Text(cells[i]) for i in columns), style="bold" if row.best else None)
    return table
