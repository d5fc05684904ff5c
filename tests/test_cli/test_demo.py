"""`dtopt demo` writes what the tests use, and the commands that it prints work as they are printed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dtopt_cli.commands import demo
from tests.places import ROOT
from tools import demo_files


def test_the_archive_holds_the_fixtures() -> None:
    with zipfile.ZipFile(demo_files.ARCHIVE) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == demo_files.members()


def test_every_file_is_described() -> None:
    described = {name for name, _ in demo.CONTENTS}
    beside = {"train_tf115.py", "tf115.json", "continue.py"}  # the program of old.h5, its losses, what continues it
    assert set(demo_files.FILES) == described | beside


@pytest.mark.breadth
def test_what_it_prints_can_be_typed(main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = main("demo", "a b")
    commands = [shlex.split(line) for line in out.splitlines() if line.startswith(("  dtopt ", "  python "))]
    assert (code, len(commands)) == (0, 4)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    outputs = []
    for program, *words in commands:
        start = ["-m", "dtopt_cli"] if program == "dtopt" else []
        done = subprocess.run([sys.executable, *start, *words], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert "fidelity: exact" in outputs[1]
    assert outputs[2].startswith("same: ")
    assert "Adam continues after step 80" in outputs[3]


def test_a_folder_with_files_is_left_alone(main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("")
    code, _, error = main("demo", ".")
    assert (code, "is not empty" in " ".join(error.split())) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    code, _, error = main("demo", "mine/inner")
    assert (code, "cannot be written" in error) == (2, True)
