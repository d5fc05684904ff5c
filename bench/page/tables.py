"""One table, as HTML and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDE = 5
"""Columns from which a table scrolls on a phone, and shows a hint."""


@dataclass(frozen=True)
class Table:
    """Attributes: caption; headings; rows of cells, plain text; text: how many columns from the left contain text and
    not numbers; the last one contains remarks and is text as well.
    """

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text: int = 1

    def is_text(self, column: int) -> bool:
        return column < self.text or column == len(self.headings) - 1


def markdown(table: Table) -> str:
    """Return GitHub's Markdown, without the caption."""
    lines = [table.headings, tuple("---" if table.is_text(i) else "---:" for i in range(len(table.headings)))]
    rule = f"|{'|'.join(lines[1])}|"
    return "\n".join([_line(lines[0]), rule, *(_line(row) for row in table.rows)])


def _line(cells: Sequence[str]) -> str:
    parts = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return "|" + "|".join(f" {part} " if part else " " for part in parts) + "|"


def html(table: Table) -> str:
    """Return a table in its own box that scrolls sideways on narrow screens, also by keyboard."""
    named = (cell or "remarks" for cell in table.headings)
    head = "".join(f'<th scope="col"{_kind(table, i)}>{escape(cell)}</th>' for i, cell in enumerate(named))
    body = "\n".join(f"<tr>{_cells(table, row)}</tr>" for row in table.rows)
    caption = f"<span>{escape(table.caption)}</span>"
    kind = "scroll wide" if len(table.headings) >= WIDE else "scroll"
    return (
        f'<div class="{kind}" role="region" tabindex="0" aria-label="{escape(table.caption, quote=True)}">\n<table>\n'
        f"<caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def _cells(table: Table, row: Sequence[str]) -> str:
    first = f'<th scope="row">{escape(row[0])}</th>'
    return first + "".join(f"<td{_kind(table, i)}>{escape(cell)}</td>" for i, cell in enumerate(row) if i)


def _kind(table: Table, column: int) -> str:
    return "" if table.is_text(column) else ' class="number"'
