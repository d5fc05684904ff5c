"""Where things are printed: results on stdout, messages and progress on stderr, `--json` one document alone."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


WINDOWS = os.name == "nt"
"""Whose shells know double quotes alone."""


def results() -> Console:
    """Console for results. Rich honours NO_COLOR, TERM=dumb and pipes by itself."""
    return _console(highlight=False, soft_wrap=not sys.stdout.isatty())


def messages() -> Console:
    """Console for progress, warnings and errors."""
    return _console(stderr=True, highlight=False, soft_wrap=True)


def _console(**options: Any) -> Console:
    from rich.console import Console

    class Plain(Console):
        """Shows control characters in what it prints."""

        def print(self, *objects: Any, **how: Any) -> None:
            super().print(*(plain(value) if isinstance(value, str) else value for value in objects), **how)

    return Plain(**options)


def hang(console: Console, first: str, text: str) -> None:
    """Print a text after its first words, in a terminal with all further lines below its beginning."""
    text = line(text)
    lines = fold(text, console.width - 1, first) if console.is_terminal else [first + text]
    for row in lines:
        console.print(row, markup=False, soft_wrap=True)


def fold(text: str, width: int, first: str) -> list[str]:
    """A text in lines of at most this width. Words and options to type, `--set NAME=VALUE`, are left whole."""
    from migrate import surfaces

    whole = list(text)
    for start, end in surfaces.spans(text):
        whole[start:end] = text[start:end].replace(" ", "\0")
    lines = textwrap.wrap(
        "".join(whole),
        max(width, len(first) + 1),
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [row.replace("\0", " ") for row in lines] or [first.rstrip()]


def tell(text: str, commands: Iterable[str] = ()) -> None:
    """A message on stderr, if anybody can read it, and what to type next, each command whole and alone on its line."""
    console = messages()
    with contextlib.suppress(OSError):
        begins = "dtopt: " if text.startswith("dtopt: ") else ""
        hang(console, begins, text.removeprefix(begins))
        for command in commands:
            console.print(f"  {command}", markup=False)


_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""What turns the direction of text, or breaks lines, in Unicode."""
_CONTROLS = {i: f"\\x{i:02x}" for i in (*range(32), *range(127, 160)) if i != 10}
_CONTROLS |= {i: f"\\u{i:04x}" for i in _DIRECTIONS}


def plain(text: str) -> str:
    """Control characters as such, so that a name in a file cannot steer the terminal; undecodable bytes as escapes."""
    return text.translate(_CONTROLS).encode("utf-8", "backslashreplace").decode()


def line(text: str) -> str:
    """The same in one line: paths and names of files may hold line breaks."""
    return plain(text).replace("\n", "\\n")


def typed(path: str) -> str:
    """A path in a command to type."""
    return typed_word(argument(path))


def argument(path: str) -> str:
    """A path that is no option."""
    return f"./{path}" if path.startswith("-") else path


def typed_word(word: str) -> str:
    """A word in a command to type, for the shells that people have: `$'a\\nb'` if it has control characters."""
    if line(word) == word:
        return subprocess.list2cmdline([word]) if WINDOWS else shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{line(escaped)}'"


def message(text: str) -> str:
    """One line, whose text without options to type is no longer than `migrate`'s own messages."""
    from migrate.bytes import messages

    begins = "dtopt: "
    return begins + messages.line(" ".join(text.split("\n")), messages.LONGEST - len(begins))


@dataclass
class Printed:
    """What this run has printed already."""

    document: bool = False


printed = Printed()


def print_json(document: Any) -> None:
    """The only thing that `--json` prints. NaN and infinity are written as null: JSON has no word for them."""
    printed.document = True
    sys.stdout.write(json.dumps(_finite(document), indent=2, default=str) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and value - value != 0:
        return None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
