"""Batches: every source has a target of its own, and what is broken or interrupted costs nothing but itself."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.batches.naming import distinct_names, expand, jobs
from migrate.batches.workers import WorkerDiedError, in_processes
from migrate.errors import AmbiguousError, DamagedFileError, UnknownFormatError
from optim import slot_layout
from optim.bytes.bundle import BundleReader
from optim.errors import HyperparameterError
from tests.helpers.bundles import rewritten
from tests.places import CORPUS

ADAM, SGD = "keras224-adam-eps-none-nested", "tf29-adam-clipnorm-decay-nested"
DECAYED = "extra-k224-adadelta-decay-mlp-npz"


@pytest.fixture
def folds(tmp_path: Path, load_case: Any) -> list[str]:
    """Three checkpoints called model.h5."""
    paths = []
    for fold, case in (("a", ADAM), ("b", SGD), ("c", ADAM)):
        (tmp_path / fold).mkdir()
        paths.append(shutil.copy(load_case(case).source, tmp_path / fold / "model.h5"))
    return [str(path) for path in paths]


def _statuses(report: migrate.BatchReport) -> list[str]:
    return [item.status for item in report.items]


def test_names_are_the_shortest_that_differ() -> None:
    assert distinct_names(["/x/a/model.h5", "/x/b/model.h5", "/x/b/ckpt-1"]) == ["a-model", "b-model", "ckpt-1"]
    assert distinct_names(["/x/a/run/m.h5", "/x/b/run/m.h5"]) == ["a-run-m", "b-run-m"]
    assert distinct_names(["/x/m.h5", "/x/m.keras"]) == ["m-h5", "m-keras"]  # a slot target cannot end in .h5
    assert distinct_names(["/x/M.h5", "/y/m.h5"]) == ["x-M", "y-m"]
    assert distinct_names(["/w.weights.h5"]) == ["w"]


def test_names_that_folders_cannot_tell_apart_still_differ_and_stay_the_same() -> None:
    paths = ["/a/b-c/m.h5", "/a-b/c/m.h5", "/a-b-c/m.h5"]
    names = distinct_names(paths)
    assert len(set(names)) == 3
    assert distinct_names(paths) == names
    assert [name.split("-m")[0] for name in distinct_names(paths[::-1])] == [n.split("-m")[0] for n in names[::-1]]


def test_a_folder_stands_for_what_lies_in_it(folds: list[str], tmp_path: Path) -> None:
    shutil.copy(folds[0], tmp_path / "a" / "older.h5")
    (tmp_path / "a" / "notes.txt").write_text("not a checkpoint")
    assert expand(str(tmp_path / "a")) == [str(tmp_path / "a" / "model.h5"), str(tmp_path / "a" / "older.h5")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnknownFormatError, match="contains no checkpoint"):
        expand(str(tmp_path / "empty"))


def test_a_checkpoint_folder_is_one_source_unless_others_lie_in_it(folds: list[str], tmp_path: Path) -> None:
    migrate.migrate_checkpoint(folds[0], tmp_path / "slots")
    assert expand(str(tmp_path / "slots")) == [str(tmp_path / "slots")]
    saver = CORPUS / "keras224-adam-saver-mlp" / "source"
    shutil.copytree(saver, tmp_path / "tf")
    folder = next(p.parent for p in (tmp_path / "tf").rglob("*.index"))
    assert expand(str(folder)) == [str(folder)]
    shutil.copy(folds[0], folder / "model.h5")
    with pytest.raises(AmbiguousError, match=r"model\.h5"):
        expand(str(folder))


def test_a_source_given_twice_is_migrated_once_and_is_never_a_target(folds: list[str], tmp_path: Path) -> None:
    assert len(jobs([folds[0], folds[0], str(tmp_path / "a")], str(tmp_path))) == 1
    migrate.migrate_checkpoint(folds[0], tmp_path / "out" / "model")
    (tmp_path / "link").symlink_to(tmp_path / "out" / "model")
    report = migrate.migrate_batch([tmp_path / "link", folds[1]], tmp_path / "out", overwrite=True)
    assert _statuses(report) == ["migrated", "failed"]
    assert "itself one of the sources" in report.items[1].problem
    assert migrate.read(tmp_path / "out" / "model").algorithm == migrate.read(folds[0]).algorithm


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.quick(1)
def test_one_broken_file_stops_no_other(folds: list[str], tmp_path: Path, processes: int) -> None:
    (tmp_path / "a" / "broken.h5").write_bytes(Path(folds[0]).read_bytes()[:2000])
    sources = [folds[0], str(tmp_path / "a" / "broken.h5"), str(tmp_path / "nowhere.h5"), *folds[1:]]
    seen: list[tuple[int, int]] = []
    report = migrate.migrate_batch(
        sources, tmp_path / "out", jobs=processes, progress=lambda done, total: seen.append((done, total))
    )
    assert _statuses(report) == ["migrated", "failed", "failed", "migrated", "migrated"]
    assert report.exit_code == 3
    assert seen == [(n, 5) for n in range(1, 6)]
    assert "does not exist" in report.items[2].problem
    assert sorted(os.listdir(tmp_path / "out")) == ["a-model", "b-model", "c-model"]
    for item in (report.items[0], *report.items[3:]):
        source, target = migrate.read(item.source), migrate.read(item.dest)
        assert item.report is not None
        assert (target.algorithm, target.iterations) == (source.algorithm, source.iterations)
        for slot, owners in source.slots.items():
            for name, array in owners.items():
                np.testing.assert_array_equal(target.slots[slot][name].load(), array.load())


def test_resume_leaves_what_is_whole_and_repairs_nothing_unasked(folds: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert _statuses(migrate.migrate_batch(folds, out)) == ["migrated"] * 3
    assert _statuses(migrate.migrate_batch(folds, out)) == ["failed"] * 3
    shutil.rmtree(out / "b-model")
    data = next((out / "c-model").glob("*.data-*"))
    damaged = bytearray(data.read_bytes())
    damaged[10] ^= 1
    data.write_bytes(damaged)
    whole = {p: p.stat().st_mtime_ns for p in (out / "a-model").iterdir()}
    report = migrate.migrate_batch(folds, out, resume=True)
    assert _statuses(report) == ["skipped", "migrated", "failed"]
    assert "--overwrite" in report.items[2].problem
    assert _statuses(migrate.migrate_batch(folds, out, resume=True, overwrite=True)) == [
        "skipped",
        "skipped",
        "migrated",
    ]
    assert {p: p.stat().st_mtime_ns for p in (out / "a-model").iterdir()} == whole


def test_resume_does_not_leave_a_target_that_tensorflow_cannot_restore(folds: list[str], tmp_path: Path) -> None:
    report = migrate.migrate_batch(folds[:1], tmp_path / "out")
    (path,) = Path(report.items[0].dest).glob("*.data-00000-of-00001")
    data = bytearray(path.read_bytes())
    data[data.index(b"VARIABLE_VALUE")] ^= 1  # in the object graph
    path.write_bytes(data)
    assert _statuses(migrate.migrate_batch(folds[:1], tmp_path / "out", resume=True)) == ["failed"]
    assert _statuses(migrate.migrate_batch(folds[:1], tmp_path / "out", resume=True, overwrite=True)) == ["migrated"]


def _altered(folder: Path, kind: str) -> None:
    data = next(folder.glob("*.data-00000-of-00001"))
    if kind == "state file":
        pointer = folder / "checkpoint"
        pointer.write_text(pointer.read_text().replace('all_model_checkpoint_paths: "state', 'all_x: "state'))
    elif kind == "no state file":
        (folder / "checkpoint").unlink()
    else:
        reader = BundleReader(str(data).removesuffix(".data-00000-of-00001"))
        extent = reader.extent("save_counter/.ATTRIBUTES/VARIABLE_VALUE")
        assert extent is not None
        changed = bytearray(data.read_bytes())
        changed[extent.offset] ^= 1
        data.write_bytes(changed)


@pytest.mark.parametrize("kind", ["state file", "no state file", "counter"])
def test_resume_leaves_no_altered_checkpoint_alone(folds: list[str], tmp_path: Path, kind: str) -> None:
    report = migrate.migrate_batch(folds[:1], tmp_path / "out")
    _altered(Path(report.items[0].dest), kind)
    again = migrate.migrate_batch(folds[:1], tmp_path / "out", resume=True)
    assert _statuses(again) == ["failed"]
    assert "exists; give another name" in again.items[0].problem
    if kind == "counter":
        with pytest.raises(DamagedFileError, match="wrong checksum of tensor 'save_counter"):
            migrate.verify(folds[0], report.items[0].dest)


def test_resume_leaves_no_target_alone_that_forgot_why_it_is_not_exact(tmp_path: Path) -> None:
    source = CORPUS / "tf24-sgd-clipboth-mlp" / "source" / "model.h5"
    report = migrate.migrate_batch([source], tmp_path / "out")
    assert _statuses(migrate.migrate_batch([source], tmp_path / "out", resume=True)) == ["skipped"]
    with rewritten(Path(slot_layout.current_prefix(report.items[0].dest))) as (_, texts):
        document = json.loads(texts[slot_layout.METADATA_KEY])
        document["provenance"].update(fidelity="exact", reasons=[])
        texts[slot_layout.METADATA_KEY] = json.dumps(document).encode()
    assert _statuses(migrate.migrate_batch([source], tmp_path / "out", resume=True)) == ["failed"]


@pytest.mark.parametrize("word", [b"kernel_constraint", b"mean_squared_error", b"momentum"])
def test_resume_leaves_no_altered_model_alone(tmp_path: Path, word: bytes) -> None:
    source = CORPUS / "keras224-sgd-momentum-convbn" / "source" / "model.h5"
    report = migrate.migrate_batch([source], tmp_path / "out", to="tf-keras")
    assert _statuses(migrate.migrate_batch([source], tmp_path / "out", to="tf-keras", resume=True)) == ["skipped"]
    target = Path(report.items[0].dest)
    data = bytearray(target.read_bytes())
    data[data.index(word) + 3] ^= 1
    target.write_bytes(data)
    assert _statuses(migrate.migrate_batch([source], tmp_path / "out", to="tf-keras", resume=True)) == ["failed"]


def test_resume_does_not_take_one_source_for_another(folds: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    migrate.migrate_batch(folds[:1], out)
    report = migrate.migrate_batch(folds[1:2], out, resume=True)  # it is called model, too
    assert _statuses(report) == ["failed"]


def test_shards_share_the_work_under_the_same_names(folds: list[str], tmp_path: Path) -> None:
    parts = [migrate.migrate_batch(folds, tmp_path / "out", shard=(i, 2)) for i in (1, 2)]
    assert [[Path(item.dest).name for item in part.items] for part in parts] == [["a-model", "c-model"], ["b-model"]]
    assert migrate.migrate_batch(folds, tmp_path / "more", shard=(4, 4)).items == ()
    for shard in ((0, 2), (3, 2)):
        with pytest.raises(HyperparameterError, match="shard"):
            migrate.migrate_batch(folds, tmp_path / "out", shard=shard)


def test_strict_refuses_one_by_one(tmp_path: Path, load_case: Any) -> None:
    case = load_case(DECAYED)
    report = migrate.migrate_batch([case.source], tmp_path / "out", strict=True, **case.hints)
    assert (_statuses(report), report.exit_code) == (["refused"], 1)
    assert not (tmp_path / "out").exists()


def test_wrong_options_are_told_before_anything_is_done(folds: list[str], tmp_path: Path) -> None:
    with pytest.raises(HyperparameterError, match="jobs"):
        migrate.migrate_batch(folds, tmp_path / "out", jobs=0)
    with pytest.raises(HyperparameterError, match="no target"):
        migrate.migrate_batch(folds, tmp_path / "out", to="tape")
    with pytest.raises(TypeError, match="overwritten"):
        migrate.migrate_batch(folds, tmp_path / "out", overwritten=True)


def test_a_process_that_dies_takes_only_its_own_task_with_it() -> None:
    tasks = ["1 + 1", "__import__('os')._exit(7)", "__import__('os').kill(__import__('os').getpid(), 9)", "2 + 2"]
    results = dict(in_processes(eval, tasks, 2))
    assert (results[0], results[3]) == (2, 4)
    assert isinstance(results[1], WorkerDiedError)
    assert "exit code 7" in str(results[1])
    assert "SIGKILL" in str(results[2])


def test_an_interrupt_tells_what_was_done(folds: list[str], tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(migrate.BatchInterrupted) as caught:
        migrate.migrate_batch(folds, tmp_path / "out", progress=stop)
    assert _statuses(caught.value.report) == ["migrated", "migrated", "not reached"]
    assert _statuses(migrate.migrate_batch(folds, tmp_path / "out", resume=True)) == ["skipped", "skipped", "migrated"]


def test_ctrl_c_that_a_library_hides_ends_a_batch(
    folds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """h5py's lock makes a SystemError of it: the file was called a defect, and the batch went on."""
    from migrate.conversion import convert

    def hidden(source: str, dest: str, **options: Any) -> Any:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise SystemError("<cyfunction FastRLock.__exit__> returned a result with an exception set") from error

    monkeypatch.setattr(convert, "migrate_checkpoint", hidden)
    with pytest.raises(migrate.BatchInterrupted) as caught:
        migrate.migrate_batch(folds, tmp_path / "out")
    assert _statuses(caught.value.report) == ["not reached"] * 3
