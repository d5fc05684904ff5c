"""Options as messages name them, and how the surface that asks writes them: the command line or Python.

Every message names an option as a shell takes it, `--set NAME=VALUE`. This file finds such options in a text:
`messages` never cuts them, `claims` joins those of several questions, and Python shows them as arguments.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

PYTHON, SHELL = "python", "shell"
current: ContextVar[str] = ContextVar("surface", default=PYTHON)
"""The surface that asks. The command line sets it to SHELL."""

VARIABLES, OPTIMIZER, ORDER = "--variables", "--optimizer", "--order"
"""Options among answers, which are values of `--set`: the trained variables, one of several optimizers or orders."""
ARGUMENTS = {VARIABLES: "variables", OPTIMIZER: "optimizer_path", ORDER: "order"}
"""What these are called in Python."""

_SHELL_WORD = r"""(?:'[^']*'|"[^"]*"|\\.|[^\s'",;()\\])+"""
_ANSWER = re.compile(rf"(?P<option>--set|--variables(?= '?\[)) (?P<typed>{_SHELL_WORD}(?<![.]))")
"""An option that a message names with its value; a full stop after it is the sentence's."""
_PLAIN = re.compile(r"(?!(?:none|null|true|false|nan|infinity)$)[a-z_][\w.>-]*", re.IGNORECASE | re.ASCII)
"""Text that needs no quotes after `--set NAME=`, and is no other JSON."""
_OPEN = re.compile(r"(?:VALUE|N|CLASS|NAME)|.*(?:\bVALUE\b|\bN\b|\bCLASS\b|[.]{3}).*[]}]", re.DOTALL)
"""A value that the user has to fill in, if it is no JSON."""
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
    """Where the options begin and end that a text names with their values."""
    return [match.span() for match in _ANSWER.finditer(text)]


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


def naming(names: Sequence[str]) -> str:
    """The option that names all variables which are trained, in order."""
    return f"{VARIABLES} {shlex.quote(json.dumps(list(names)))}"


def words(answers: Mapping[str, Any]) -> list[str]:
    """The options that answer so, as words of a command."""
    options: list[str] = []
    for name, value in answers.items():
        plain = value if isinstance(value, str) else json.dumps(value)
        options += [name, plain] if name in ARGUMENTS else ["--set", f"{name}={shown(value)}"]
    return options


def ways(text: str) -> list[dict[str, Any] | None]:
    """The ways to answer that a text names: options that follow one another are one way.

    Returns:
      Name -> value for each way; None for a way with a value that the user has to fill in.
    """
    runs: list[list[re.Match[str]]] = []
    end = -2
    for match in _ANSWER.finditer(text):
        if match.start() != end + 1:
            runs.append([])
        runs[-1].append(match)
        end = match.end()
    return [None if any(map(_is_open, run)) else dict(map(_answer, run)) for run in runs]


def _answer(match: re.Match[str]) -> tuple[str, Any]:
    typed = shlex.split(match["typed"])[0]
    return (VARIABLES, json.loads(typed)) if match["option"] == VARIABLES else setting(typed)


def _is_open(match: re.Match[str]) -> bool:
    value = shlex.split(match["typed"])[0].partition("=")[2]
    try:
        json.loads(value)
    except ValueError:
        return match["option"] != VARIABLES and _OPEN.fullmatch(value) is not None
    return False


def worded(text: str) -> str:
    """A text with its options as the current surface writes them."""
    if current.get() == SHELL:
        return text
    return _ARGUMENT.sub(lambda match: _ARGUMENTS[match[0]], _ANSWER.sub(_in_python, text))


def _in_python(match: re.Match[str]) -> str:
    try:
        if _is_open(match):
            name, _, value = shlex.split(match["typed"])[0].partition("=")
            return f"overrides={{{name!r}: {value}}}"
        name, value = _answer(match)
    except ValueError:  # no option after all
        return match[0]
    return f"variables={value!r}" if name == VARIABLES else f"overrides={{{name!r}: {value!r}}}"


def call(function: str, *places: str, **arguments: Any) -> str:
    """A call in Python, whole; arguments that are None are left out."""
    named = [f"{name}={value!r}" for name, value in arguments.items() if value is not None]
    return f"{function}({', '.join((*places, *named))})"
