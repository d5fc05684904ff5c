"""`batch` over folders with many checkpoints: never silently one of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import h5py
import pytest
from typer.testing import CliRunner

import migrate
from dtopt_cli.app import app
from migrate import readers
from migrate.batches import naming
from migrate.bytes.checkpoint_paths import find_prefix
from migrate.errors import AmbiguousError, UnknownFormatError
from tests.places import CORPUS, WILD


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
    names = _names(naming.expand(str(tmp_path / "tree"), every=True), tmp_path / "tree")
    assert sorted(names) == sorted(["model.h5", "sm", "backup/chief/ckpt-3", *(f"run/ck/{s}" for s in states)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnknownFormatError, match="contains no checkpoint"):
        naming.expand(str(tmp_path / "empty"), every=True)


def test_one_checkpoint_above_others_is_not_taken_for_all(tmp_path: Path) -> None:
    """ModelCheckpoint's folder, with others below: without `--all` these were left out without a word."""
    shutil.copy(WILD / "tf29-e-tfops-functional-h5" / "source" / "model.h5", tmp_path / "last.h5")
    assert _names(naming.expand(str(tmp_path)), tmp_path) == ["last.h5"]
    (tmp_path / "epochs" / "1").mkdir(parents=True)
    shutil.copy(tmp_path / "last.h5", tmp_path / "epochs" / "1" / "model.h5")
    with pytest.raises(AmbiguousError, match=r"last.h5, and others in folders in it .*epochs/1/model.h5.*--all"):
        naming.expand(str(tmp_path))
    assert len(naming.expand(str(tmp_path), every=True)) == 2


def test_histories_in_a_folder_are_not_silently_their_newest(tmp_path: Path) -> None:
    _history(tmp_path / "run1")
    _history(tmp_path / "run2")
    with pytest.raises(AmbiguousError, match=r"run1 holds \d checkpoints .*--all"):
        naming.expand(str(tmp_path))


def test_a_folder_above_checkpoints_says_what_lies_below_it(tmp_path: Path) -> None:
    tree = tmp_path / "my tree"
    shutil.copytree(WILD / "tf29-i-backup-and-restore" / "source" / "backup", tree / "run" / "backup")
    shutil.copytree(WILD / "tf29-h-mirrored-sm" / "source" / "saved_model", tree / "run" / "sm")
    with pytest.raises(UnknownFormatError, match="it contains") as refused:
        readers.detect(str(tree))
    for below in ("run/backup/chief/ckpt-3", "run/sm"):
        assert str(tree / below) in str(refused.value)
    (command,) = re.findall(r"dtopt (migrate batch .* --into )FOLDER", str(refused.value))
    words = [*shlex.split(command), str(tmp_path / "out"), "--dry-run"]
    assert "2 in all" in CliRunner().invoke(app, words).output


@pytest.mark.parametrize("every", [False, True])
def test_targets_within_the_sources_are_none_the_next_time(every: bool, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    shutil.copy(WILD / "tf29-e-tfops-functional-h5" / "source" / "model.h5", runs / "model.h5")
    for _ in range(2):
        report = migrate.batch([runs], runs / "new", every=every, resume=True)
        assert [(item.source, item.dest) for item in report.items] == [
            (str(runs / "model.h5"), str(runs / "new/model"))
        ]
        assert report.exit_code == 0


def test_sources_in_the_folder_of_the_targets_are_taken(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    shutil.copy(WILD / "tf29-e-tfops-functional-h5" / "source" / "model.h5", tmp_path / "runs" / "model.h5")
    for source, into in ((tmp_path, tmp_path), (tmp_path / "runs", tmp_path)):
        jobs = naming.jobs([source], str(into), every=True)
        assert [job.source for job in jobs] == [str(tmp_path / "runs" / "model.h5")]


def test_a_state_that_is_not_there_is_not_another_one(tmp_path: Path) -> None:
    """The file `checkpoint` of a folder names the state that is meant; an older one beside it is not that."""
    folder = tmp_path / "ck"
    shutil.copytree(WILD / "tf29-d-manager-plain" / "source" / "tf_ckpts", folder)
    for path in sorted(folder.glob("*.index"))[1:]:
        for part in folder.glob(f"{path.stem}.*"):
            part.unlink()
    (state,) = (path.stem for path in folder.glob("*.index"))
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "/elsewhere/{state}"\n')
    assert find_prefix(str(folder)) == str(folder / state)
    (folder / "checkpoint").write_text('model_checkpoint_path: "ckpt-77"\n')
    with pytest.raises(AmbiguousError, match=rf"names ckpt-77, which is missing; .* {folder / state}"):
        find_prefix(str(folder))
    (folder / "checkpoint").unlink()
    assert find_prefix(str(folder)) == str(folder / state)


def test_a_spoiled_file_with_the_suffix_of_a_model_has_a_line(tmp_path: Path) -> None:
    shutil.copy(WILD / "tf29-e-tfops-functional-h5" / "source" / "model.h5", tmp_path / "model.h5")
    (tmp_path / "cut.h5").touch()
    (tmp_path / "zeros.keras").write_bytes(bytes(2000))
    (tmp_path / "zeros.txt").write_bytes(bytes(2000))
    (tmp_path / "gone.hdf5").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.h5")
    with h5py.File(tmp_path / "data.h5", "w") as file:  # of another program
        file["x"] = 1
    for options in [], ["--all"]:
        words = ["migrate", "batch", str(tmp_path), *options, "--into", str(tmp_path / "out"), "--dry-run", "--json"]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 3
        statuses = {Path(i["source"]).name: i["status"] for i in json.loads(result.output)["items"]}
        spoiled = dict.fromkeys(("cut.h5", "gone.hdf5", "pipe.h5", "zeros.keras"), "failed")
        assert statuses == {**spoiled, "model.h5": "planned"}


def test_parts_of_a_checkpoint_without_its_index_are_named(tmp_path: Path) -> None:
    source = CORPUS / "extra-k122-adam-saver" / "source"
    for suffix, name in ((".meta", "graph"), (".data-00000-of-00001", "numbers"), (".index", "table")):
        shutil.copy(next(source.glob(f"*{suffix}")), tmp_path / f"{name}{suffix}")
    report = migrate.batch([tmp_path], tmp_path / "out", every=True)
    assert [Path(item.source).name for item in report.items] == ["graph", "numbers", "table"]
    problems = [item.problem for item in report.items]
    assert "graph.index is missing" in problems[0]
    assert "numbers.index is missing" in problems[1]
    assert "table.data-00000-of-00001 is missing" in problems[2]
    with pytest.raises(AmbiguousError, match="3 checkpoints"):
        naming.expand(str(tmp_path))
    (tmp_path / "table.index").unlink()
    assert _names(naming.expand(str(tmp_path)), tmp_path) == ["graph", "numbers"]
