"""Jupyter notebooks as one Python module: code cells one after the other, IPython's own lines set aside."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from migrate.errors import DamagedFileError

MARK = "# dtopt: cell {}"
HELD = "pass  # dtopt: held {}"
_MARKED = re.compile(r"^# dtopt: cell (\d+)$")
_HELD = re.compile(r"^(?P<indent>\s*)pass  # dtopt: held (?P<index>\d+)$")
_MAGIC = re.compile(r"^\s*(?:[%!?]|[\w.]+\?{1,2}\s*$|[\w, ]+=\s*[%!])")
_INDENT = re.compile(r"\n( +|\t+)\S")


@dataclass(frozen=True)
class Notebook:
    """`document` is the JSON, `held` the lines that are no Python, `code` the module, `indent` that of the JSON."""

    document: dict[str, Any]
    held: tuple[str, ...]
    code: str
    indent: str
    final_newline: bool
    escaped: bool

    @property
    def magics(self) -> str:
        """IPython's lines, among which are those that install packages."""
        return "\n".join(self.held)

    def place(self, line: int) -> tuple[int | None, int]:
        """Cell and line in it, both from 1, of a line of `code`."""
        cell, start = None, 0
        for number, text in enumerate(self.code.splitlines()[:line], 1):
            found = _MARKED.match(text)
            if found:
                cell, start = int(found[1]), number
        return cell, line - start

    def with_code(self, code: str) -> Notebook:
        """The notebook with the cells of another module; cells that did not change stay as they were written."""
        cells = dict(_split(code, self.held))
        before = dict(_split(self.code, self.held))
        document = {**self.document, "cells": [dict(cell) for cell in self.document["cells"]]}
        for number, cell in enumerate(document["cells"], 1):
            if number in cells and cells[number] != before[number]:
                text = cells[number]
                cell["source"] = text.splitlines(keepends=True) if isinstance(cell["source"], list) else text
        return replace(self, document=document, code=code)

    def to_text(self) -> str:
        text = json.dumps(self.document, indent=self.indent or None, ensure_ascii=self.escaped)
        return text + ("\n" if self.final_newline else "")


def read(text: str, path: str) -> Notebook:
    """Raises DamagedFileError where the text is no notebook."""
    try:
        document = json.loads(text)
        cells = document["cells"]
        sources = [(c["cell_type"], c["source"]) for c in cells]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"{path} is no Jupyter notebook of format 4 ({error!r})") from error
    held: list[str] = []
    lines: list[str] = []
    for number, (kind, source) in enumerate(sources, 1):
        code = "".join(source) if isinstance(source, list) else str(source)
        if kind != "code" or code.lstrip().startswith("%%"):
            held += code.splitlines() if kind == "code" else []
            continue
        lines += [MARK.format(number), *_without_magics(code, held)]
    found = _INDENT.search(text)
    return Notebook(
        document,
        tuple(held),
        "\n".join(lines) + "\n",
        found[1] if found else "",
        text.endswith("\n"),
        text.isascii() and "\\u" in text,
    )


def _without_magics(code: str, held: list[str]) -> list[str]:
    lines = []
    for line in code.split("\n"):
        if _MAGIC.match(line) and not line.lstrip().startswith("%%"):
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(indent + HELD.format(len(held)))
            held.append(line)
        else:
            lines.append(line)
    return lines


def _split(code: str, held: tuple[str, ...]) -> list[tuple[int, str]]:
    cells: list[tuple[int, list[str]]] = []
    for line in code.removesuffix("\n").split("\n"):
        found = _MARKED.match(line)
        if found:
            cells.append((int(found[1]), []))
        elif cells:
            back = _HELD.match(line)
            cells[-1][1].append(held[int(back["index"])] if back else line)
    return [(number, "\n".join(lines)) for number, lines in cells]
