"""What is written is executed: whole programs of each kind, under the Keras of each target, against the old release's
numbers.

`tests/fixtures/code/programs/NAME.txt` is what NAME.py printed in its release, which its docstring names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from migrate.code.findings import BY_HAND, DIFFERS
from migrate.code.run import migrate_code
from tests.places import FIXTURES, ROOT, STORIES

PROGRAMS = FIXTURES / "code" / "programs"
TARGETS = ("optim", "keras", "tf-keras")
RELEASES = {"keras": "keras==2.2.4", "tf": "tensorflow==2.4.4", "tf_new": "tensorflow==2.13.1"}
OPEN = {
    ("keras_epsilon", "keras"): DIFFERS,  # epsilon
    ("tf_closure", "keras"): BY_HAND,  # no minimize
}
"""Where a target cannot do the same, and what the command says of it; everything else is rewritten or the same."""
QUICK = {"tf_loop"}
ROUNDED = 1e-5
"""What rounding in float32 makes of a dozen steps, absolute: weights are about 1; the largest error was 4e-6."""


def release(name: str) -> str:
    return RELEASES.get(name) or RELEASES[name.split("_")[0]]


def rewritten(folder: Path, to: str, names: list[str]) -> dict[str, Any]:
    """The report of each program, which is rewritten in the folder."""
    reports = {}
    for name in names:
        path = folder / f"{name}.py"
        shutil.copy(PROGRAMS / path.name, path)
        reports[name] = migrate_code([path], to=to, source=release(name), write=True)
        new = path.read_text()
        migrate_code([path], to=to, source=release(name), write=True)
        assert path.read_text() == new, f"a second run changes {name}"
    return reports


def run(folder: Path, to: str, names: list[str]) -> dict[str, list[float] | str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.fspath(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "KERAS_BACKEND": "tensorflow",
        "TF_USE_LEGACY_KERAS": "1" if to == "tf-keras" else "0",
    }
    files = [os.fspath(folder / f"{name}.py") for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_migrate.code.run_programs", *files],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    return {Path(path).stem: numbers for path, numbers in json.loads(done.stdout).items()}


def wrong(name: str, numbers: list[float] | str) -> str:
    wanted = [float(word) for word in (PROGRAMS / f"{name}.txt").read_text().split()]
    if isinstance(numbers, str):
        return f"{name}: {numbers}"
    if len(numbers) != len(wanted):
        return f"{name}: {len(numbers)} numbers for {len(wanted)}"
    error = float(np.max(np.abs(np.array(numbers) - np.array(wanted))))
    return f"{name}: {error:.2g} away" if error > ROUNDED else ""


def check(folder: Path, to: str, names: list[str]) -> None:
    reports = rewritten(folder, to, names)
    verdicts = {name: {f.verdict for f in report.findings} & {DIFFERS, BY_HAND} for name, report in reports.items()}
    assert verdicts == {name: {OPEN[name, to]} if (name, to) in OPEN else set() for name in names}
    results = run(folder, to, [name for name in names if OPEN.get((name, to)) != BY_HAND])
    assert [
        text for name, numbers in results.items() if (text := wrong(name, numbers)) and (name, to) not in OPEN
    ] == []
    assert [name for name, numbers in results.items() if isinstance(numbers, str)] == []


NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))


def test_rewritten_programs_print_what_the_old_release_printed(tmp_path: Path) -> None:
    check(tmp_path, "optim", [name for name in NAMES if name in QUICK])


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.quick(1)
def test_a_second_run_changes_no_program(tmp_path: Path, to: str) -> None:
    rewritten(tmp_path, to, NAMES)
    for program in sorted(STORIES.glob("*/train.py")):
        path = shutil.copy(program, tmp_path / f"{program.parent.name}.py")
        source = {"keras22": "keras==2.2.4", "tf115": "tensorflow==1.15.5"}[program.parent.name]
        migrate_code([path], to=to, source=source, write=True)
        new = Path(path).read_text()
        migrate_code([path], to=to, source=source, write=True)
        assert Path(path).read_text() == new


@pytest.mark.breadth
@pytest.mark.parametrize("to", TARGETS)
def test_every_rewritten_program_prints_what_the_old_release_printed(tmp_path: Path, to: str) -> None:
    check(tmp_path, to, NAMES)
