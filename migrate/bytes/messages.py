"""What the user is told, as a terminal may show it: texts hold names and values of files, which may be anything."""

from __future__ import annotations

from collections.abc import Sequence

from migrate import surfaces
from optim.bytes import urls

LONGEST = 500
"""Characters of a message."""
BRIEF = 120
"""Characters of a value in a message."""
CUT = " ... (--debug shows all of it) ... "
IN_JSON = " ... (--json has all of it) ... "
WORD = 24
"""Characters of the longest word that is not cut."""
END = " ..."
"""After the beginning of a text that has little room."""


def line(text: str, longest: int = LONGEST, cut: str = CUT) -> str:
    """A message in one line: without credentials, control characters of damaged names as a terminal may show them, and
    of a long one the beginning and the end. An option to type, `--set NAME=VALUE`, is left whole.

    Args:
      longest: characters of what is no option.
      cut: stands for what is left out.
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in urls.shown(text))
    options = surfaces.spans(shown)
    prose = len(shown) - sum(end - start for start, end in options)
    if prose <= longest:
        return shown
    if longest < 2 * len(cut):
        return _without(shown, options, max(longest - len(END), 0), prose, END)
    room = longest - len(cut)
    return _without(shown, options, room - room * 2 // 5, prose - room * 2 // 5, cut)


def _without(text: str, options: Sequence[tuple[int, int]], first: int, last: int, cut: str) -> str:
    """A text without its prose from `first` to `last`, places in the text without its options."""
    parts, place, end = [], 0, 0
    for start, stop in (*options, (len(text), len(text))):
        piece = text[end:start]
        head, tail = piece[: max(first - place, 0)], piece[max(last - place, 0) :]
        is_cut = len(head) + len(tail) < len(piece)
        parts += [_whole_words(head), cut, _whole_words(tail, last=True)] if is_cut else [piece]
        cut = END + " " if is_cut else cut
        parts.append(text[start:stop])
        place, end = place + len(piece), stop
    return "".join(parts)


def _whole_words(text: str, last: bool = False) -> str:
    """A part of a text without the word that its end, or with `last` its beginning, may cut; of a long name a part."""
    rest, word = text.partition(" ")[::-2] if last else text.rpartition(" ")[::2]
    return rest if rest and len(word) <= WORD else text


def worded(text: str) -> str:
    """A message in one line, its options as the surface writes them that asks."""
    return surfaces.worded(line(text))


def brief(value: object) -> str:
    """A value next to another in one message: of one that is long, as a schedule may be, its beginning and its end."""
    return line(repr(value), BRIEF, END)


def some(items: Sequence[str], most: int = 5, between: str = ", ") -> str:
    """The first items of a list that may be long, and how many more there are."""
    return between.join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")
