"""Keras's own tests of its optimizers, run against ours; see tests/upstream/README.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.upstream import sources
from tests.upstream.load import reasons_by_test

pytestmark = pytest.mark.breadth

UPSTREAM = ROOT / "tests" / "upstream"
SUITES = json.loads((UPSTREAM / "suites.json").read_text(encoding="utf-8"))
CASES = [(suite, name) for suite, files in SUITES.items() for name in files["run"]]


def _folder(suite: str) -> Path:
    try:
        return sources.folder(suite)
    except sources.NoSourceError as error:
        pytest.skip(f"{sources.NOT_RUN}: {suite}: {error}")


def _counts(suite: str, path: Path) -> dict[str, int]:
    """How many of a file's tests passed, were skipped, failed as listed, ...; none may fail otherwise."""
    environment = {
        **os.environ,
        "UPSTREAM_SUITE": suite,
        "UPSTREAM_FILE": str(path),
        "PYTHONPATH": str(ROOT),
        "DTOPT_KERNELS": "off",
    }
    # native: other styles parse sources, at which CPython 3.11 may raise SystemError (python/cpython#106905)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=native", "-W", "ignore"]
    ran = subprocess.run(
        [*command, "--rootdir", str(path.parent), "-c", os.devnull, str(UPSTREAM / "one_file.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    return {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", ran.stdout.splitlines()[-1])}


@pytest.mark.parametrize(("suite", "name"), CASES, ids=lambda value: str(value).replace("/", "-"))
def test_a_file(suite: str, name: str) -> None:
    path = (_folder(suite) / f"{name}_test.py").resolve()
    counts = _counts(suite, path)
    listed = [test for test in reasons_by_test() if test.startswith(f"{suite}/{path.stem}::")]
    assert counts["passed"] > 0
    assert counts.get("xfailed", 0) == len(listed), counts


@pytest.mark.parametrize("suite", SUITES)
def test_every_file_is_run_or_has_its_reason(suite: str) -> None:
    home = _folder(suite)
    there = {str(path.relative_to(home)).removesuffix("_test.py") for path in home.rglob("*_test.py")}
    files = SUITES[suite]
    assert there == {*files["run"], *files["left out"]}
    assert not set(files["run"]) & set(files["left out"])
    assert all(files["left out"].values())
