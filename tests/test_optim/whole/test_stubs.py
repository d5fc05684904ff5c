"""What type checkers know of `optim`: `optim/__init__.pyi`, made by `tools/stubs.py`."""

from __future__ import annotations

import ast
import inspect
import os
import re
from typing import Any

import pytest
from mypy import api as mypy

import optim
from tests.places import FIXTURES, ROOT
from tools import stubs

PROGRAM = FIXTURES / "types" / "program.py"
CLASSES = [node for node in ast.parse(stubs.STUB.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]


def test_the_stub_is_up_to_date() -> None:
    assert stubs.STUB.read_text(encoding="utf-8") == stubs.text(), "run: python tools/stubs.py"


def test_every_optimizer_is_in_it() -> None:
    made = [name for name in optim.__all__ if getattr(getattr(optim, name), "_rule_class", None) is not None]
    assert sorted(node.name for node in CLASSES) == sorted([*made, "Groups"])


@pytest.mark.parametrize("node", CLASSES, ids=lambda node: node.name)
def test_signatures_are_those_at_run_time(node: ast.ClassDef) -> None:
    (made,) = (item for item in node.body if isinstance(item, ast.FunctionDef))
    given = made.args
    positional: list[tuple[str, Any, Any]] = [
        (a.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD, None) for a in given.args
    ]
    for place, default in enumerate(given.defaults, len(positional) - len(given.defaults)):
        positional[place] = (*positional[place][:2], ast.literal_eval(default))
    found = positional[1:]  # without self
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append(
            (argument.arg, inspect.Parameter.KEYWORD_ONLY, None if default is None else ast.literal_eval(default))
        )
    parameters = inspect.signature(getattr(optim, node.name)).parameters.values()
    empty = inspect.Parameter.empty
    assert found == [(p.name, p.kind, None if p.default is empty else p.default) for p in parameters]


def test_a_type_checker_refuses_wrong_calls_and_no_others() -> None:
    config = os.fspath(ROOT / "pyproject.toml")
    output, errors, _ = mypy.run(["--config-file", config, "--no-error-summary", os.fspath(PROGRAM)])
    assert not errors
    refused = {int(line) for line in re.findall(rf"{PROGRAM.name}:(\d+): error", output)}
    lines = PROGRAM.read_text(encoding="utf-8").splitlines()
    assert refused == {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}, output
