"""Tables for a terminal. Text is never cut: in a narrow terminal, cells continue on the next line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Column, Table

VERDICTS = {"faster": "green", "slower": "red", "same": "cyan", "unclear": "yellow"}
"""Colours."""


def table(
    headings: Sequence[str], is_text: Callable[[int], bool] | None = None, whole: int = 0, rather: Sequence[int] = ()
) -> Table:
    """Return a table without lines; add rows by `add_row`, in rich's markup.

    Words are broken only if a terminal is too narrow for the longest of each column.

    Args:
      is_text: which columns contain text, not numbers; by default the first and one without a heading.
      whole: how many columns from the left, such as names that users copy, are never broken.
      rather: columns, such as intervals, that are broken last.
    """
    grid = _kind()(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        left = is_text(number) if is_text else not number or not heading
        grid.add_column(heading, justify="left" if left else "right", overflow="fold", no_wrap=number < whole)
    grid.rather = rather
    return grid


@cache
def _kind() -> Any:
    """Return a table class with other column widths: rich shrinks columns by their size, whatever words they
    contain."""
    from rich.table import Table

    class Whole(Table):
        rather: Sequence[int] = ()

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            if not self._fit(options.max_width, True):
                self._fit(options.max_width, False)
            return super().__rich_console__(console, options)

        def _fit(self, most: int, no_wrap: bool) -> bool:
            """Give each column its required width, and then its preferred width if space is left. Returns: whether it
            fits."""
            for number in self.rather:
                self.columns[number].no_wrap = no_wrap
            least = [_longest(column, column.no_wrap) for column in self.columns]
            left = most - sum(least) - (len(least) - 1)
            missing = [_longest(column, whole=True) - width for column, width in zip(self.columns, least, strict=True)]
            for more, number in sorted(zip(missing, range(len(least)), strict=True)):
                addition = more if more <= left else 0
                self.columns[number].width = least[number] + addition if left >= 0 else None
                left -= addition
            return left >= 0

    return Whole


def _longest(column: Column, whole: bool) -> int:
    """Return the letters of the longest word in a column, or of its longest cell."""
    from rich.text import Text

    cells = (Text.from_markup(cell) if isinstance(cell, str) else cell for cell in (column.header, *column.cells))
    parts = (part for cell in cells for part in ([cell.plain] if whole else cell.plain.split()))  # type: ignore[union-attr]
    return max(map(len, parts), default=0)
