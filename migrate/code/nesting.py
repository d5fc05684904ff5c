"""Limit how deep an expression may be nested, because parsers recurse, and run recursive code on a large stack."""

from __future__ import annotations

import ast
import re
import sys
import threading
import warnings
from collections.abc import Callable
from typing import TypeVar

import libcst as cst

Result = TypeVar("Result")
DEEPEST = 2000
"""LibCST reads this in seconds, in quadratic time; Python's own parser refuses it earlier."""
STACK_BYTES = 256 * 2**20
"""Four times the need of 2,000 nested brackets. Only the used part occupies memory."""
PYTHON_FRAMES = 200_000
_TOKEN = re.compile(
    r"#[^\n]*|(?s:\"\"\".*?\"\"\"|'''.*?''')|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|\\\n|\n|[\[({]|[\])}]|[,;]"
    r"|\b(?:not|and|or|if|else|lambda|in|is|await|yield)\b|\belif\b|[-+*/%@&|^~<>=!.:]+"
)
_OPENS, _CLOSES = frozenset("([{"), frozenset(")]}")


def depth(code: str) -> int:
    """An upper bound of the nesting of a program's expressions, and of its longest chain of `elif`."""
    levels, chain, deepest = [0], 0, 0
    for match in _TOKEN.finditer(code):
        token = match[0]
        if token == "\n":
            levels = levels if len(levels) > 1 else [0]
        elif token in _OPENS:
            levels.append(levels[-1] + 1)
        elif token in _CLOSES:
            # the content of the brackets is one more part of the outer expression
            if len(levels) > 1:
                levels.pop()
            levels[-1] += 1
        elif token in (",", ";"):
            levels[-1] = levels[-2] + 1 if len(levels) > 1 else 0
        elif token == "elif":
            chain += 1
        elif token[0] != "#" and token != "\\\n":
            levels[-1] += len(token) if token[0] in "-+~*" else 1
        deepest = max(deepest, levels[-1])
    return max(deepest, chain)


def syntax_error(code: str) -> SyntaxError | None:
    """Why a text is not Python, with the line; None if it is, even of a newer release than the running one."""
    if depth(code) > DEEPEST:
        return SyntaxError(f"expressions are nested more than {DEEPEST} deep", (None, 1, 1, None))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
        return None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        try:
            cst.parse_module(code)
        except (cst.ParserSyntaxError, RecursionError) as other:
            return error if isinstance(error, SyntaxError) else SyntaxError(str(error), (None, _line(other), 1, None))
    return None


def _line(error: Exception) -> int:
    return getattr(error, "raw_line", 1)


def on_large_stack(function: Callable[[], Result]) -> Result:
    """Run a function where it can recurse deeply; return or raise its result."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # raised again below
            errors.append(error)

    frames, size = sys.getrecursionlimit(), threading.stack_size(STACK_BYTES)
    sys.setrecursionlimit(max(frames, PYTHON_FRAMES))
    try:
        thread = threading.Thread(target=run, name="dtopt migrate code", daemon=True)
        thread.start()
        threading.stack_size(size)
        thread.join()
    finally:
        threading.stack_size(size)
        sys.setrecursionlimit(frames)
    if errors:
        raise errors[0]
    return results[0]
