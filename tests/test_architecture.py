"""Imports run one way, and TensorFlow is loaded only by what needs it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# package: what of this project it may import.
ALLOWED = {
    "optim": {"optim"},
    "migrate": {"migrate", "optim"},
    "bench": {"bench", "optim"},
    "dtopt_cli": {"dtopt_cli", "migrate", "bench", "optim"},
}
OURS = {*ALLOWED, "tests"}
HEAVY = {"tensorflow", "keras", "tf_keras", "torch", "jax", "optax"}
FILES = sorted(path for package in ALLOWED for path in (ROOT / package).rglob("*.py"))


def _imports(tree: ast.AST, *, when_loaded: bool) -> Iterator[str]:
    """Top-level packages that a file imports; with `when_loaded`, only those that importing the file loads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what is imported"
            yield (node.module or "").split(".")[0]
        elif when_loaded and (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or (isinstance(node, ast.If) and _is_typing(node))
        ):
            continue
        else:
            yield from _imports(node, when_loaded=when_loaded)


def _is_typing(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def test_the_packages_are_there() -> None:
    for package in ALLOWED:
        assert (ROOT / package / "__init__.py").is_file()


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    found = set(_imports(ast.parse(path.read_text(encoding="utf-8")), when_loaded=False)) & OURS
    assert found <= ALLOWED[package], f"{path} imports {sorted(found - ALLOWED[package])}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_frameworks_are_imported_where_they_are_used(path: Path) -> None:
    """`optim` is TensorFlow's; elsewhere a framework is imported inside the function that needs it."""
    package = path.relative_to(ROOT).parts[0]
    found = set(_imports(ast.parse(path.read_text(encoding="utf-8")), when_loaded=True)) & HEAVY
    allowed = {"tensorflow"} if package == "optim" else set()
    assert found <= allowed, f"{path} imports {sorted(found - allowed)} when it is loaded"


@pytest.mark.parametrize(
    "modules",
    [
        "optim, optim.errors, optim.slot_layout, optim.rule, optim.rules.adam, optim.rules.sgd, optim.rules.adadelta",
        "optim.sharding, bench.forecast.query, bench.forecast.report",
        "migrate",
        "dtopt_cli.app",
    ],
)
def test_what_must_not_load_tensorflow(modules: str) -> None:
    code = f"import sys, {modules}; print(sorted({HEAVY!r} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": os.fspath(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, timeout=120
    )
    assert done.stdout.strip() == "[]"
