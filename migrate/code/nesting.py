"""Parsers recurse: bound how deep an expression may be nested, and run what recurses on a large stack."""

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
"""LibCST reads this in seconds; it takes quadratic time, and Python's own parser ends before."""
STACK_BYTES = 256 * 2**20
"""Four times what 2,000 brackets in each other take. Only what is used of it becomes memory."""
PYTHON_FRAMES = 200_000
_TOKEN = re.compile(
    r"#[^\n]*|(?s:\"\"\".*?\"\"\"|'''.*?''')|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|\\\n|\n|[\[({]|[\])}]|[,;]"
    r"|\b(?:not|and|or|if|else|lambda|in|is|await|yield)\b|\belif\b|[-+*/%@&|^~<>=!.:]+"
)
_OPENS, _CLOSES = frozenset("([{"), frozenset(")]}")


def depth(code: str) -> int:
    """An upper bound of how deep the expressions of a program are nested, and of its longest chain of `elif`."""
    levels, chain, deepest = [0], 0, 0
    for match in _TOKEN.finditer(code):
        token = match[0]
        if token == "\n":
            levels = levels if len(levels) > 1 else [0]
        elif token in _OPENS:
            levels.append(levels[-1] + 1)
        elif token in _CLOSES:
            # what was in the brackets is one more part of what is around them
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
    """Why a text is no Python, with the line; None if it is some, also of a newer release than the one that runs."""
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
    """What a function returns or raises, run where it can recurse far."""
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
