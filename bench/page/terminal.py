"""Tables for a terminal: nothing is ever cut, where it is narrow cells go on in the next line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

VERDICTS = {"faster": "green", "slower": "red", "same": "cyan", "unclear": "yellow"}
"""Colours."""


def table(
    headings: Sequence[str], is_text: Callable[[int], bool] | None = None, whole: int = 0, words: bool = False
) -> Table:
    """A table without lines; rows are added by `add_row`, in rich's markup.

    Args:
      is_text: which columns hold text, not numbers; the first and one without a heading if left out.
      whole: how many columns from the left, such as names that people copy, are never broken.
      words: whether words of headings are never broken; they must leave room.
    """
    from rich.table import Table

    found = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        left = is_text(number) if is_text else not number or not heading
        least = max(map(len, heading.split()), default=0) if words else None
        found.add_column(
            heading, justify="left" if left else "right", overflow="fold", no_wrap=number < whole, min_width=least
        )
    return found
