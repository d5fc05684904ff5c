"""Read Jupyter notebooks as one Python module: all code cells in order, without IPython's own lines.

A cell that is not Python is excluded too, so it does not affect the others. Writing replaces only the changed lines in
the old JSON.
"""

from __future__ import annotations

import difflib
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from migrate.code import nesting
from migrate.errors import DamagedFileError

MARK = "# dtopt: cell {}"
HELD = "pass  # dtopt: held {}"
_MARKED = re.compile(r"^# dtopt: cell (\d+)$")
_HELD = re.compile(r"^(?P<indent>\s*)pass  # dtopt: held (?P<index>\d+)$")
_MAGIC = re.compile(r"^\s*(?:[%!?]|[\w.]+\?{1,2}\s*$|[\w, ]+=\s*[%!])")
_CELL_MAGIC = re.compile(r"\s*%%(\w*)")
PYTHON = frozenset({"time", "timeit", "capture", "prun", "lprun", "mprun", "memit", "debug", "heat", "snakeviz"})
"""Cell magics that run the cell as the notebook's Python. Others write it to a file or pass it to another program."""
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)")
_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()
Span = tuple[int, int]


@dataclass(frozen=True)
class Aside:
    """An excluded cell: its text, the reason, and its first line that is not Python, 0 if it need not be."""

    cell: int
    text: str
    reason: str
    line: int = 0


@dataclass(frozen=True)
class Notebook:
    """`text`: the JSON. `magic_lines`: the lines that are not Python. `code`: the module. `aside`: the excluded cells.

    `sources`: for each cell in the module, the places of its source strings in `text`.
    """

    text: str
    magic_lines: tuple[str, ...]
    code: str
    aside: tuple[Aside, ...] = ()
    sources: dict[int, Sequence[Span]] = field(default_factory=dict)

    @property
    def magics(self) -> str:
        """IPython's lines, such as those that install packages, and the excluded cells."""
        return "\n".join([*self.magic_lines, *(cell.text for cell in self.aside)])

    @cached_property
    def _cell_starts(self) -> list[Span]:
        marks = ((number, _MARKED.match(line)) for number, line in enumerate(self.code.split("\n"), 1))
        return [(number, int(mark[1])) for number, mark in marks if mark]

    def place(self, line: int) -> tuple[int | None, int]:
        """Cell and line in it, both from 1, of a line of `code`."""
        index = bisect_right(self._cell_starts, line, key=lambda start: start[0])
        start, cell = self._cell_starts[index - 1] if index else (0, None)
        return cell, line - start

    def with_code(self, code: str) -> Notebook:
        """Replace the cells by those of another module; everything else stays as it was written."""
        cells, before = dict(_split(code, self.magic_lines)), dict(_split(self.code, self.magic_lines))
        text = self.text
        for number in sorted(self.sources, reverse=True):
            if cells.get(number, before[number]) != before[number]:
                start, end = self.sources[number][0][0], self.sources[number][-1][1]
                text = text[:start] + self._encoded(self.sources[number], cells[number]) + text[end:]
        return replace(self, text=text, code=code)

    def shown(self, code: str) -> list[str]:
        """The lines of a module as the user sees them: cells by their number, with IPython's own lines."""
        return [self._shown(line) for line in code.splitlines()]

    def _shown(self, line: str) -> str:
        cell, back = _MARKED.match(line), _HELD.match(line)
        if cell:
            return f"# cell {cell[1]}"
        return self.magic_lines[int(back["index"])] if back else line

    def _encoded(self, spans: Sequence[Span], source: str) -> str:
        """A cell's source as JSON strings; unchanged lines keep their text."""
        start = spans[0][0]
        if len(spans) == 1 and self.text[:start].rstrip()[-1] != "[":
            return self._string(source)
        raw = [self.text[first:end] for first, end in spans]
        old, new = [json.loads(item) for item in raw], source.splitlines(keepends=True)
        between = self.text[spans[0][1] : spans[1][0]] if len(spans) > 1 else f",{self._space_before(start)}"
        parts: list[str] = []
        for tag, first, last, new_first, new_last in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
            parts += raw[first:last] if tag == "equal" else map(self._string, new[new_first:new_last])
        return between.join(parts)

    def _space_before(self, at: int) -> str:
        return self.text[len(self.text[:at].rstrip()) : at]

    def _string(self, text: str) -> str:
        encoded = json.dumps(text, ensure_ascii=any(ord(char) > 127 for char in self._escaped))
        return "".join(self._escaped.get(char, char) if char.isascii() else char for char in encoded)

    @cached_property
    def _escaped(self) -> dict[str, str]:
        r"""Characters that this notebook escapes without need, as \u003c, and their escapes."""
        escapes = {}
        for match in _ESCAPE.finditer(self.text):
            char = chr(int(match[1], 16)) if match[1] else '"'
            if char > " " and not char.isalnum() and char not in '"\\':
                escapes[char] = match[0]
        return escapes

    def to_text(self) -> str:
        return self.text


def read(text: str, path: str) -> Notebook:
    """Parse a notebook. Raises DamagedFileError for other text."""
    try:
        cells = [(value["cell_type"], value["source"], spans) for value, spans in _cells(text)]
    except (ValueError, KeyError, TypeError, IndexError, StopIteration) as error:
        raise DamagedFileError(f"{path} is not a Jupyter notebook of format 4 ({error!r})") from error
    magic_lines: list[str] = []
    lines: list[str] = []
    aside: list[Aside] = []
    sources: dict[int, Sequence[Span]] = {}
    for number, (kind, source, spans) in enumerate(cells, 1):
        if kind != "code":
            continue
        code = "".join(source) if isinstance(source, list) else str(source)
        magic = _CELL_MAGIC.match(code)
        if magic and magic[1] not in PYTHON:
            aside.append(Aside(number, code, f"a cell of %%{magic[1]} is not read"))
            continue
        cell_lines = _as_python(code, len(magic_lines))
        if isinstance(cell_lines, SyntaxError):
            aside.append(Aside(number, code, cell_lines.msg, cell_lines.lineno or 1))
            continue
        magic_lines += cell_lines[1]
        lines += [MARK.format(number), *cell_lines[0]]
        if spans:
            sources[number] = spans
    return Notebook(text, tuple(magic_lines), "\n".join(lines) + "\n", tuple(aside), sources)


def _as_python(code: str, count: int) -> tuple[list[str], list[str]] | SyntaxError:
    """The lines of a cell, and its lines of IPython, numbered from `count`; or why it is not Python."""
    if nesting.syntax_error(code) is None:
        return code.split("\n"), []
    magic_lines: list[str] = []
    lines: list[str] = []
    for line in code.split("\n"):
        continued = (
            bool(magic_lines)
            and magic_lines[-1].endswith("\\")
            and lines[-1].endswith(HELD.format(count + len(magic_lines) - 1))
        )
        if _MAGIC.match(line) or continued:
            indent = lines[-1].partition("pass")[0] if continued else line[: len(line) - len(line.lstrip())]
            indent = indent if lines else ""  # after a cell magic
            lines.append(indent + HELD.format(count + len(magic_lines)))
            magic_lines.append(line)
        else:
            lines.append(line)
    return nesting.syntax_error("\n".join(lines)) or (lines, magic_lines)


def _split(code: str, magic_lines: tuple[str, ...]) -> list[tuple[int, str]]:
    cells: list[tuple[int, list[str]]] = []
    for line in code.removesuffix("\n").split("\n"):
        mark = _MARKED.match(line)
        if mark:
            cells.append((int(mark[1]), []))
        elif cells:
            back = _HELD.match(line)
            cells[-1][1].append(magic_lines[int(back["index"])] if back else line)
    return [(number, "\n".join(lines)) for number, lines in cells]


def _cells(text: str) -> Iterator[tuple[dict[str, Any], Sequence[Span]]]:
    """Every cell, and the places of its source strings. Raises ValueError and the like if it is no notebook."""
    json.loads(text)
    cells = next(start for key, start, _ in _keys_with_places(text, _skip(text, 0)) if key == "cells")
    for start, _ in _places_of_items(text, cells, "["):
        value, _ = _DECODER.raw_decode(text, start)
        source = next((s, e) for key, s, e in _keys_with_places(text, start) if key == "source")
        spans = list(_places_of_items(text, source[0], "[")) if text[source[0]] == "[" else [source]
        yield value, spans


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _keys_with_places(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    for start, end in _places_of_items(text, at, "{"):
        key, after = _DECODER.raw_decode(text, start)
        yield key, _skip(text, _skip(text, after) + 1), end


def _places_of_items(text: str, at: int, bracket: str) -> Iterator[Span]:
    if text[at] != bracket:
        raise ValueError(f"{bracket} expected")
    at = _skip(text, at + 1)
    while text[at] not in "]}":
        _, end = _DECODER.raw_decode(text, at)
        if bracket == "{":
            _, end = _DECODER.raw_decode(text, _skip(text, _skip(text, end) + 1))
        yield at, end
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at
