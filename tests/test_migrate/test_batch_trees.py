"""`batch` over folders with many checkpoints: never silently one of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from migrate.batches import naming
from migrate.errors import AmbiguousError, UnknownFormatError

WILD = Path(__file__).parents[1] / "fixtures" / "wild"


def _history(folder: Path) -> Path:
    """A folder as CheckpointManager leaves it: two states, and which one is the newest."""
    source = WILD / "tf29-d-manager-plain" / "source" / "tf_ckpts"
    folder.mkdir(parents=True)
    newest = next(source.glob("*.index")).name.removesuffix(".index")
    for path in source.iterdir():
        shutil.copy(path, folder)
        if path.name.startswith(newest):
            shutil.copy(path, folder / path.name.replace(newest, "ckpt-0", 1))
    for path in folder.glob("*.index"):  # one state beside it at least
        assert path.is_file()
    return folder


def _names(paths: list[str], below: Path) -> list[str]:
    return [str(Path(path).relative_to(below)) for path in paths]


def test_a_history_is_never_silently_its_newest(tmp_path: Path) -> None:
    folder = _history(tmp_path / "ck")
    states = sorted(p.name.removesuffix(".index") for p in folder.glob("*.index"))
    assert len(states) > 1
    with pytest.raises(AmbiguousError, match=rf"holds {len(states)} checkpoints .*--all"):
        naming.expand(str(folder))
    assert _names(naming.expand(str(folder), every=True), folder) == states


def test_all_finds_what_lies_in_a_tree(tmp_path: Path) -> None:
    folder = _history(tmp_path / "tree" / "run" / "ck")
    states = sorted(p.name.removesuffix(".index") for p in folder.glob("*.index"))
    shutil.copytree(WILD / "tf29-h-mirrored-sm" / "source" / "saved_model", tmp_path / "tree" / "sm")
    shutil.copytree(WILD / "tf29-i-backup-and-restore" / "source" / "backup", tmp_path / "tree" / "backup")
    shutil.copy(WILD / "tf29-e-tfops-functional-h5" / "source" / "model.h5", tmp_path / "tree" / "model.h5")
    (tmp_path / "tree" / "notes.txt").write_text("none of these")
    found = _names(naming.expand(str(tmp_path / "tree"), every=True), tmp_path / "tree")
    assert sorted(found) == sorted(["model.h5", "sm", "backup/chief/ckpt-3", *(f"run/ck/{s}" for s in states)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnknownFormatError, match="none lies in it"):
        naming.expand(str(tmp_path / "empty"), every=True)
