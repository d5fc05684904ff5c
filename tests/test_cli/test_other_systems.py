"""dtopt-light as on a system that is not POSIX: what only POSIX has is taken away, and open files keep their names.

No such system ran these tests: `tests/elsewhere/sitecustomize.py` stands for one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import migrate
from dtopt_cli import output
from migrate.batches import naming
from migrate.bytes import atomic
from migrate.errors import TargetExistsError
from optim.bytes import files, system, urls
from tests.places import ROOT, STORIES

TARGETS = ("new.keras", "new.h5", "list.npz", "slots")
STORY = STORIES / "resumed" / "model.h5"
ELSEWHERE = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "elsewhere"), str(ROOT)])}


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    words = (sys.executable, *words)
    return subprocess.run(words, cwd=folder, env=ELSEWHERE, capture_output=True, text=True, check=False)


ONE_AFTER_THE_OTHER = """
import contextlib, io, json, sys
from dtopt_cli import app
printed = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["dtopt", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            app.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
    assert code == 0, words
    printed.append(out.getvalue())
print(json.dumps(printed))
"""


def test_the_main_path_needs_nothing_of_posix(tmp_path: Path) -> None:
    """Commands run one after the other in one process; `verify` of models and `--jobs` start others."""
    old, two = "demo/old.h5", ("demo/old.h5", "demo/bert", "--into", "out")
    expected = {
        ("demo", "demo"): "",
        ("migrate", "inspect", old, "--stats"): "fidelity: exact",
        **{("migrate", "checkpoint", old, target): "" for target in TARGETS},
        **{("migrate", "verify", old, target): "same: 12 slots" for target in TARGETS},
        **{("migrate", "checkpoint", old, target, "--overwrite"): "" for target in ("list.npz", "slots")},
        ("migrate", "batch", *two, "--jobs", "2"): "2 migrated",
        ("migrate", "batch", *two, "--resume"): "2 skipped",
        ("migrate", "code", "demo/program/train.py", "--write"): "1 file written",
    }
    done = python(tmp_path, "-c", ONE_AFTER_THE_OTHER, json.dumps([*expected]))
    assert done.returncode == 0, done.stderr
    for (words, wanted), printed in zip(expected.items(), json.loads(done.stdout), strict=True):
        assert wanted in printed, words
    left = {path.name for path in tmp_path.iterdir()} - {"demo", "new.keras", "new.h5", "list.npz", "slots", "out"}
    assert left == set(), "no scratch files and no locks"


@pytest.mark.breadth
@pytest.mark.parametrize("name", ["new.keras", "new.h5", "slots/checkpoint"])
def test_an_open_target_is_left_as_it_is(name: str, tmp_path: Path) -> None:
    dest = name.split("/")[0]
    migrate.migrate_checkpoint(STORY, tmp_path / dest)
    before = (tmp_path / name).read_bytes()
    program = (
        "import migrate\nfrom optim.errors import CheckpointError\n"
        f"held = open({name!r}, 'rb')\n"
        f"try:\n    migrate.migrate_checkpoint({str(STORY)!r}, {dest!r}, overwrite=True)\n"
        "except CheckpointError as error:\n    print(error)\n"
    )
    done = python(tmp_path, "-c", program)
    assert "used by another process" in done.stdout, done.stderr
    assert (tmp_path / name).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [dest]
    assert migrate.verify(STORY, tmp_path / dest).ok


class _Msvcrt:
    """Windows' locks of files, of this process."""

    LK_LOCK, LK_NBLCK = 1, 2

    def __init__(self) -> None:
        self.modes: dict[int, int] = {}

    def locking(self, descriptor: int, mode: int, count: int) -> None:
        open_files = {os.fstat(other).st_ino for other in self.modes if other != descriptor and _is_open(other)}
        if os.fstat(descriptor).st_ino in open_files:
            raise PermissionError(13, "Permission denied")
        self.modes[descriptor] = mode


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_locks_of_windows_tell_living_runs_from_dead_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(system, "fcntl", None)
    monkeypatch.setattr(system, "msvcrt", _Msvcrt())
    dead = tmp_path / ".out.dtopt-dead"
    dead.mkdir()
    with atomic.scratch_folder(str(tmp_path / "out")) as first:
        assert not dead.exists()
        with pytest.raises(BlockingIOError), atomic.locked(first, wait=False):
            pass
        with atomic.scratch_folder(str(tmp_path / "out")) as second:
            assert os.path.isdir(first)
            assert second != first
    assert list(tmp_path.iterdir()) == []


def test_without_locks_scratch_of_others_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(system, "fcntl", None)
    monkeypatch.setattr(system, "msvcrt", None)
    other = tmp_path / ".out.dtopt-other"
    other.mkdir()
    with atomic.scratch_folder(str(tmp_path / "out")):
        pass
    assert list(tmp_path.iterdir()) == [other]


def test_paths_of_windows() -> None:
    assert not urls.is_url(r"C:\runs\model.h5")
    assert not urls.is_url("c:/runs/model.h5")
    assert urls.is_url("s3://bucket/model.h5")


@pytest.mark.parametrize(
    ("word", "typed"),
    [(r"C:\my runs\model.h5", r'"C:\my runs\model.h5"'), (r"C:\runs\model.h5", r"C:\runs\model.h5")],
)
def test_a_command_is_typed_in_the_shells_of_windows(word: str, typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "WINDOWS", True)
    assert output.typed_word(word) == typed


@pytest.fixture
def caseless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in which upper and lower case are the same; what is in it has small letters."""
    folder = str(tmp_path)

    def small(path: Any) -> Any:
        text = os.fspath(path) if not isinstance(path, int) else path
        return folder + text[len(folder) :].lower() if isinstance(text, str) and text.startswith(folder) else path

    for name in ("exists", "lexists", "isdir", "isfile"):
        real = getattr(os.path, name)
        monkeypatch.setattr(os.path, name, lambda path, real=real: real(small(path)))
    same = os.path.samefile
    monkeypatch.setattr(os.path, "samefile", lambda a, b: same(small(a), small(b)))
    return tmp_path


def test_a_target_that_is_the_source_in_other_letters_is_refused(caseless: Path) -> None:
    source = caseless / "model.h5"
    source.write_bytes(STORY.read_bytes())
    assert files.canonical(str(caseless / "MODEL.H5")) == files.canonical(str(source))
    for dest in ("MODEL.h5", "Model.h5"):
        with pytest.raises(TargetExistsError):
            migrate.migrate_checkpoint(source, caseless / dest, to="tf-keras", overwrite=True)
    assert source.read_bytes() == STORY.read_bytes()


def test_names_of_a_batch_differ_in_more_than_letters() -> None:
    names = naming.distinct_names(["/a/Model.h5", "/b/model.h5", "/b/other.h5"])
    assert len({name.casefold() for name in names}) == 3
