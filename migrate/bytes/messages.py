"""What a person is told, as a terminal may show it: texts hold names and values of files, which may be anything."""

from __future__ import annotations

from collections.abc import Sequence

from migrate.bytes import urls

LONGEST = 500
"""Characters of a message."""
BRIEF = 120
"""Characters of a value in a message."""
CUT = " ... (--debug shows all of it) ... "
IN_JSON = " ... (--json has all of it) ... "
END = " ..."
"""After the beginning of a text that has little room."""


def line(text: str, longest: int = LONGEST, cut: str = CUT) -> str:
    """A message in one line: without credentials, with the control characters of damaged names as a terminal may show
    them, and of what is longer the beginning and the end, which says what to do.

    Args:
      cut: stands for what is left out.
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in urls.shown(text))
    if len(shown) <= longest:
        return shown
    if longest < 2 * len(cut):
        return shown[: max(longest - len(END), 0)] + END
    room = longest - len(cut)
    ends = room * 2 // 5
    return shown[: room - ends] + cut + shown[-ends:]


def brief(value: object) -> str:
    """A value beside another in one message: of one that is long, as a schedule may be, its beginning and its end."""
    return line(repr(value), BRIEF, END)


def some(items: Sequence[str], most: int = 5, between: str = ", ") -> str:
    """The first items of a list that may be long, and how many more there are."""
    return between.join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")
