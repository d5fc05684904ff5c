"""Options as messages name them, and how the surface that asks writes them: the command line or Python.

Every message names an option as a shell takes it, `--set NAME=VALUE`. This file finds such options in a text:
`messages` never cuts them, `evidence` joins those of several questions, and Python shows them as arguments.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

PYTHON, SHELL = "python", "shell"
current: ContextVar[str] = ContextVar("surface", default=PYTHON)
"""The surface that asks. The command line sets it to SHELL."""

_SHELL_WORD = r"""(?:'[^']*'|"[^"]*"|\\.|[^\s'",;()\\])+"""
_SETTING = re.compile(rf"--set (?P<typed>{_SHELL_WORD})")
_PLAIN = re.compile(r"(?!(?:none|null|true|false|nan|infinity)$)[a-z_][\w.>-]*", re.IGNORECASE | re.ASCII)
"""Text that needs no quotes after `--set NAME=`, and is no other JSON."""
_OPEN = re.compile(r"(?:VALUE|N|CLASS|NAME)|.*(?:\bVALUE\b|\bN\b|\bCLASS\b|[.]{3}).*[]}]", re.DOTALL)
"""A value that the user has to fill in."""
_ARGUMENTS = {
    "--optimizer-config FILE": "optimizer_config={...}",
    "--optimizer-config": "optimizer_config",
    "--optimizer-from": "optimizer_config",
    "--optimizer": "optimizer_path",
    "--variables FILE": "variables=[...]",
    "--variables": "variables",
    "--generation NAME": "generation=NAME",
    "--generation": "generation",
    "--overwrite": "overwrite=True",
    "--strict": "strict=True",
    "--order": "order",
    "--from": "format",
    "--set": "overrides",
    "--to": "to",
}
"""Options that are arguments in Python; the first that fits is taken."""
_ARGUMENT = re.compile("|".join(rf"{re.escape(option)}(?![\w-])" for option in _ARGUMENTS))


@contextmanager
def speaking(surface: str) -> Iterator[None]:
    """Word messages for a surface, PYTHON or SHELL."""
    token = current.set(surface)
    try:
        yield
    finally:
        current.reset(token)


def spans(text: str) -> list[tuple[int, int]]:
    """Where the options `--set NAME=VALUE` begin and end in a text."""
    return [match.span() for match in _SETTING.finditer(text)]


def setting(typed: str, pairs: Callable[[list[tuple[str, Any]]], Any] = dict) -> tuple[str, Any]:
    """Name and value of `NAME=VALUE`: the value is JSON, `none`, or else a text.

    Args:
      pairs: makes objects of JSON from their members.

    Raises:
      ValueError: no name or no value; what `pairs` raises.
    """
    name, equals, value = typed.partition("=")
    name, value = name.strip(), value.strip()
    if not equals or not name or not value:
        raise ValueError(f"{typed!r} is not NAME=VALUE, such as learning_rate=0.001")
    plain = {"none": "null"}.get(value.lower(), value.lower() if value.lower() in ("null", "true", "false") else value)
    try:
        return name, json.loads(plain, object_pairs_hook=pairs)
    except json.JSONDecodeError:
        pass
    try:
        return name, float(value)
    except ValueError:
        return name, value


def shown(value: Any) -> str:
    """A value as it is typed after `--set NAME=`, before the shell's quotes."""
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return "none" if value is None else json.dumps(value, default=str)


def words(settings: Mapping[str, Any]) -> list[str]:
    """The options that set these values, as words of a command."""
    return [word for name, value in settings.items() for word in ("--set", f"{name}={shown(value)}")]


def ways(text: str) -> list[dict[str, Any] | None]:
    """The ways to answer that a text names: options that follow one another are one way.

    Returns:
      Name -> value for each way; None for a way with a value that the user has to fill in.
    """
    runs: list[list[str]] = []
    end = -2
    for match in _SETTING.finditer(text):
        if match.start() != end + 1:
            runs.append([])
        runs[-1].append(shlex.split(match["typed"])[0])
        end = match.end()
    return [None if any(_is_open(typed) for typed in run) else dict(map(setting, run)) for run in runs]


def _is_open(typed: str) -> bool:
    return _OPEN.fullmatch(typed.partition("=")[2]) is not None


def worded(text: str) -> str:
    """A text with its options as the current surface writes them."""
    if current.get() == SHELL:
        return text
    return _ARGUMENT.sub(lambda match: _ARGUMENTS[match[0]], _SETTING.sub(_in_python, text))


def _in_python(match: re.Match[str]) -> str:
    try:
        typed = shlex.split(match["typed"])[0]
        name, equals, value = typed.partition("=")
        if not equals or not value:
            return match[0]
        return f"overrides={{{name!r}: {value if _is_open(typed) else repr(setting(typed)[1])}}}"
    except ValueError:  # no shell word after all
        return match[0]


def call(function: str, *places: str, **arguments: Any) -> str:
    """A call in Python, whole; arguments that are None are left out."""
    named = [f"{name}={value!r}" for name, value in arguments.items() if value is not None]
    return f"{function}({', '.join((*places, *named))})"
