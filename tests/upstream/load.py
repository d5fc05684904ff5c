"""A file of upstream's tests on top of stand-ins; those of its tests that do not apply have to fail."""

from __future__ import annotations

import ast
import fnmatch
import functools
import json
import sys
import unittest
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REASONS = Path(__file__).with_name("does_not_apply.json")
SUITES = Path(__file__).with_name("suites.json")
Tests = dict[str, type[unittest.TestCase]]


def reasons_by_test() -> dict[str, str]:
    """Why a test does not apply, by `<suite>/<file>::<class>::<test>`."""
    listed = json.loads(REASONS.read_text(encoding="utf-8"))
    return {test: reason for reason, tests in listed.items() for test in tests}


def load(path: Path, stand_ins: Mapping[str, ModuleType], suite: str, package: str | None) -> Tests:
    """The test classes of a file, run with `stand_ins` imported in place of the modules of those names.

    Args:
      suite: what the file is listed under in `does_not_apply.json`.
      package: `"keras"` or `"tf_keras"`, whose modules are in `<package>.src` of the installed wheel; None where all
        that the file imports of it is among the stand-ins.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and package:
            parts = node.module.split(".")
            if parts[0] == package and parts[1:2] != ["src"]:
                node.module = ".".join([package, "src", *parts[1:]])
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module
    with _in_place(stand_ins):
        exec(compile(tree, str(path), "exec"), module.__dict__)
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, unittest.TestCase) and value.__module__ == path.stem
    }
    _skip(found, json.loads(SUITES.read_text(encoding="utf-8"))[suite].get("tests left out", {}))
    _expect_failures(found, f"{suite}/{path.stem}")
    return found


@contextmanager
def _in_place(stand_ins: Mapping[str, ModuleType]) -> Iterator[None]:
    """Modules by name, in `sys.modules` and as attributes of their packages."""
    missing = object()
    kept: list[tuple[Any, str, Any]] = []
    modules = {name: sys.modules.get(name) for name in stand_ins}
    for name, stand_in in stand_ins.items():
        sys.modules[name] = stand_in
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            kept.append((sys.modules[parent], child, getattr(sys.modules[parent], child, missing)))
            setattr(sys.modules[parent], child, stand_in)
    try:
        yield
    finally:
        for holder, child, value in reversed(kept):
            delattr(holder, child) if value is missing else setattr(holder, child, value)
        for name, value in modules.items():
            if value is None:
                del sys.modules[name]
            else:
                sys.modules[name] = value


def _skip(classes: Tests, reasons: Mapping[str, str]) -> None:
    """Leave out tests that would not end."""
    for cls in classes.values():
        for name in [n for n in dir(cls) if n.startswith("test")]:
            for pattern, reason in reasons.items():
                if fnmatch.fnmatchcase(name, pattern):
                    setattr(cls, name, unittest.skip(reason)(lambda self: None))


def _expect_failures(classes: Tests, file: str) -> None:
    """A listed test that passes fails, and so does the file whose list names a test that is not there."""
    reasons = {test: reason for test, reason in reasons_by_test().items() if test.startswith(f"{file}::")}
    for cls in classes.values():
        for name in [n for n in dir(cls) if n.startswith("test")]:
            reason = reasons.pop(f"{file}::{cls.__name__}::{name}", None)
            if reason is not None:
                setattr(cls, name, _failing(getattr(cls, name), reason))
    assert not reasons, f"{REASONS.name} lists what is not in {file}: {sorted(reasons)}"


def _failing(test: Callable[..., Any], reason: str) -> Callable[..., Any]:
    @functools.wraps(test)
    def run(*args: Any) -> Any:
        return test(*args)

    return pytest.mark.xfail(reason=reason, strict=True)(run)


def all_of(path: Path, suite: str) -> Tests:
    """`load` with the stand-ins of a suite: `keras`, `for_keras`, `tf_keras` or `keras29`."""
    from tests.upstream import played_graphs, stand_ins

    if suite in ("keras", "for_keras"):
        import keras.src.testing  # noqa: F401  registers what the tests use

        return load(path, stand_ins.keras_3(suite == "for_keras"), suite, "keras")
    if suite == "keras29":
        return load(path, stand_ins.keras_29(path.parent), suite, None)
    import tf_keras.src.testing_infra.test_utils  # noqa: F401

    found = load(path, stand_ins.tf_keras(), suite, "tf_keras")
    if path.parent.name == "legacy" and path.stem != "optimizer_v2_test":  # which asks for the graph itself
        played_graphs.play(sys.modules[path.stem], found.values())
    return found
