"""Make messages safe for a terminal: they contain names and values of files, which may be anything."""

from __future__ import annotations

from collections.abc import Sequence

from migrate import surfaces
from optim.bytes import urls

LONGEST = 500
"""Most characters of a message."""
BRIEF = 120
"""Most characters of a value in a message."""
CUT = " ... (--debug shows all of it) ... "
IN_JSON = " ... (--json has all of it) ... "
WORD = 24
"""Most characters of a word that is not cut."""
END = " ..."
"""Fills the end of a text with little room."""


def line(text: str, longest: int = LONGEST, cut: str = CUT) -> str:
    """Put a message on one line: remove credentials, escape control characters, and cut the middle of a long one. An
    option to type, `--set NAME=VALUE`, stays whole.

    Args:
      longest: characters outside of options.
      cut: replaces the removed part.
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
    """Remove the prose from `first` to `last`, places in the text without its options."""
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
    """Remove the word that the end (with `last` the beginning) of a text may cut; of a long name only a part."""
    rest, word = text.partition(" ")[::-2] if last else text.rpartition(" ")[::2]
    return rest if rest and len(word) <= WORD else text


def worded(text: str) -> str:
    """Put a message on one line, with options in the style of the calling surface."""
    return surfaces.worded(line(text))


def brief(value: object) -> str:
    """Shorten a value for a message, to its beginning and its end."""
    return line(repr(value), BRIEF, END)


def some(items: Sequence[str], most: int = 5, between: str = ", ") -> str:
    """The first items of a list, and the number of the others."""
    return between.join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")
