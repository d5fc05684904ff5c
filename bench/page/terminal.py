"""Tables for a terminal: nothing is ever cut, where it is narrow cells go on in the next line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Column, Table

VERDICTS = {"faster": "green", "slower": "red", "same": "cyan", "unclear": "yellow"}
"""Colours."""


def table(headings: Sequence[str], is_text: Callable[[int], bool] | None = None, whole: int = 0) -> Table:
    """A table without lines; rows are added by `add_row`, in rich's markup. Words are broken only where a terminal is
    too narrow for the longest of each column.

    Args:
      is_text: which columns hold text, not numbers; the first and one without a heading if left out.
      whole: how many columns from the left, such as names that people copy, are never broken.
    """
    found = _kind()(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        left = is_text(number) if is_text else not number or not heading
        found.add_column(heading, justify="left" if left else "right", overflow="fold", no_wrap=number < whole)
    return found


@cache
def _kind() -> type[Table]:
    """rich takes the width of columns from each other by their size, whatever words they hold."""
    from rich.table import Table

    class Whole(Table):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            least = [_longest(column) for column in self.columns]
            fits = sum(least) + len(least) - 1 <= options.max_width
            for column, width in zip(self.columns, least, strict=True):
                column.min_width = width if fits else None
            return super().__rich_console__(console, options)

    return Whole


def _longest(column: Column) -> int:
    """Letters of what must not be broken in a column: a word, or a whole cell."""
    from rich.text import Text

    cells = (Text.from_markup(cell) if isinstance(cell, str) else cell for cell in (column.header, *column.cells))
    parts = (part for cell in cells for part in ([cell.plain] if column.no_wrap else cell.plain.split()))  # type: ignore[union-attr]
    return max(map(len, parts), default=0)
