"""Checkpoints behind URLs, on real servers of this machine: read by ranges, sent whole, and faults outlived."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import migrate
from migrate.batches import engines, naming
from migrate.errors import DamagedFileError, TargetExistsError, UnknownFormatError
from optim.bytes import files, remote, urls
from optim.errors import CheckpointError, DtoptError, UnsupportedError
from tests.helpers import servers
from tests.helpers.breadth import broad

H5 = "keras224-adam-eps-none-nested"


@pytest.fixture(autouse=True)
def _quick_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSE", 0.01)


@pytest.fixture
def site(tmp_path: Path, load_case: Any) -> Iterator[servers.Web]:
    """`model.h5`, and the same in TensorFlow's format as `run/ckpt...`."""
    with servers.web(_folder(tmp_path, load_case)) as running:
        yield running


def _folder(tmp_path: Path, load_case: Any) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    shutil.copy(load_case(H5).source, folder / "model.h5")
    migrate.migrate_checkpoint(folder / "model.h5", folder / "run")
    (folder / "run" / "checkpoint").unlink()
    for path in (folder / "run").iterdir():
        path.rename(path.with_name("ckpt" + path.name[path.name.index(".") :]))
    return folder


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with servers.s3() as url:
        yield url


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """fsspec's view of an S3 bucket, as people configure it: by variables of the environment."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "a-secret-key",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    system = fsspec.filesystem("s3", skip_instance_cache=True)
    yield system
    if system.exists("models/t"):
        system.rm("models/t", recursive=True)


def _same(a: Any, b: Any) -> None:
    one, other = migrate.read(a), migrate.read(b)
    assert (one.algorithm, one.iterations, one.hyperparameters) == (
        other.algorithm,
        other.iterations,
        other.hyperparameters,
    )
    for slot, owners in one.slots.items():
        for name, array in owners.items():
            np.testing.assert_array_equal(array.load(), other.slots[slot][name].load())


@pytest.mark.parametrize("name", ["model.h5", broad("run/ckpt")])
@pytest.mark.parametrize(
    "how", [{}, {"ranges": False}, {"ranges": False, "sizes": False}], ids=["ranges", "whole", "sizeless"]
)
def test_a_web_server_is_read(name: str, how: Any, tmp_path: Path, load_case: Any) -> None:
    folder = _folder(tmp_path, load_case)
    with servers.web(folder, **how) as site:
        report = migrate.migrate_checkpoint(f"{site.url}/{name}", tmp_path / "out")
    assert report.fidelity == migrate.migrate_checkpoint(folder / name, tmp_path / "here").fidelity
    _same(tmp_path / "out", folder / name)


@pytest.mark.parametrize("fault", ["503", "cut", broad("stall")])
def test_faults_in_the_middle_are_outlived(fault: str, site: servers.Web, tmp_path: Path) -> None:
    site.faults += [fault, "", fault]
    migrate.migrate_checkpoint(f"{site.url}/run/ckpt", tmp_path / "out")
    assert site.faults == []
    _same(tmp_path / "out", site.folder / "run" / "ckpt")


def test_a_server_that_goes_on_failing_is_given_up_and_leaves_nothing(site: servers.Web, tmp_path: Path) -> None:
    url = f"{site.url.replace('//', '//me:password@')}/model.h5?signature=secret"
    site.faults += ["503"] * 1000
    with pytest.raises(DtoptError, match="gave up after 5 tries") as error:
        migrate.migrate_checkpoint(url, tmp_path / "out")
    assert "password" not in str(error.value)
    assert "secret" not in str(error.value)
    assert os.listdir(tmp_path) == ["site"]


def test_only_what_is_needed_travels(tmp_path: Path) -> None:
    """`inspect` of a checkpoint of 60 MB."""
    import tensorflow as tf

    import optim

    variable = tf.Variable(tf.zeros([1 << 12, 1 << 10], tf.float32), name="w")
    optimizer = optim.Adam(1e-3)
    optimizer.build([variable])
    optim.save_checkpoint(tmp_path / "big", optimizer, [variable])
    prefix = migrate.readers.slots._prefix(str(tmp_path / "big"))
    with servers.web(tmp_path / "big") as site:
        report = migrate.inspect(f"{site.url}/{os.path.basename(prefix)}")
        assert report.fidelity == "exact"
        assert sum(site.sent.values()) < 4 << 20
        assert sum(path.stat().st_size for path in (tmp_path / "big").iterdir()) > 48 << 20


def test_a_source_that_changes_while_it_is_read_is_refused(site: servers.Web, tmp_path: Path) -> None:
    path = site.folder / "model.h5"

    def touched(done: int, total: int) -> None:
        os.utime(path, ns=(1, 1))

    with pytest.raises(DamagedFileError, match="was changed while it was read"):
        migrate.migrate_checkpoint(f"{site.url}/model.h5", tmp_path / "out", progress=touched)
    assert os.listdir(tmp_path) == ["site"]


@pytest.mark.quick(1)
def test_s3_to_s3_and_verified(bucket: Any, tmp_path: Path, load_case: Any) -> None:
    bucket.put(str(_folder(tmp_path, load_case)), "models/t", recursive=True)
    report = migrate.migrate_checkpoint("s3://models/t/run/ckpt", "s3://models/t/out")
    assert (report.source, report.dest) == ("s3://models/t/run/ckpt", "s3://models/t/out")
    assert migrate.verify("s3://models/t/run/ckpt", "s3://models/t/out").ok
    _same("s3://models/t/out", tmp_path / "site" / "run" / "ckpt")
    with pytest.raises(TargetExistsError, match="--overwrite"):
        migrate.migrate_checkpoint("s3://models/t/run/ckpt", "s3://models/t/out")
    before = set(files.names("s3://models/t/out"))
    migrate.migrate_checkpoint("s3://models/t/model.h5", "s3://models/t/out", overwrite=True)
    assert set(files.names("s3://models/t/out")) & before == {"checkpoint"}
    _same("s3://models/t/out", tmp_path / "site" / "model.h5")
    with pytest.raises(TargetExistsError, match="is not a slot-variable checkpoint"):
        migrate.migrate_checkpoint("s3://models/t/model.h5", "s3://models/t/run", overwrite=True)
    with pytest.raises(TargetExistsError, match="overlap"):
        migrate.migrate_checkpoint("s3://models/t/run/ckpt", "s3://models/t/run/ckpt.index", overwrite=True)


def test_a_folder_behind_a_url_is_asked_for_once(monkeypatch: pytest.MonkeyPatch, load_case: Any) -> None:
    """Which checkpoints lie in it, and how large they are, is in its list."""
    system = fsspec.filesystem("memory")
    for i in range(20):
        system.pipe_file(f"/asked/run{i}.h5", Path(load_case(H5).source).read_bytes())
    asked, info = list[str](), type(system).info
    monkeypatch.setattr(
        type(system), "info", lambda self, path, **how: [asked.append(path), info(self, path, **how)][1]
    )
    with files.listings_kept():
        jobs = naming.jobs(["memory://asked"], "memory://out", every=True)
        sizes = [engines.size_of(job) for job in jobs]
    assert (len(jobs), set(sizes)) == (20, {os.path.getsize(load_case(H5).source)})
    assert not [path for path in asked if "run" in path]
    system.pipe_file("/asked/run0.h5", b"shorter")
    assert files.size("memory://asked/run0.h5") == 7, "known only inside"
    system.rm("/asked", recursive=True)


@pytest.mark.parametrize("name", ["model.h5", "run/ckpt"])
def test_a_store_is_asked_once_about_each_file(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, load_case: Any
) -> None:
    """However many tensors it has, and whichever formats it is tried as; once more in the end."""
    system = fsspec.filesystem("memory")
    system.put(str(_folder(tmp_path, load_case)), "/once", recursive=True)
    asked, info = list[str](), type(system).info
    monkeypatch.setattr(
        type(system), "info", lambda self, path, **how: [asked.append(path), info(self, path, **how)][1]
    )
    state = migrate.read(f"memory://once/{name}")
    assert asked
    assert sorted(set(asked)) == sorted(asked)
    asked.clear()
    state.check_unchanged()
    monkeypatch.undo()
    assert state.opened is not None
    assert len(asked) == len(state.opened.files)
    system.rm("/once", recursive=True)


@pytest.mark.breadth
def test_a_tree_in_a_bucket_is_a_batch(bucket: Any, tmp_path: Path, load_case: Any) -> None:
    bucket.put(str(_folder(tmp_path, load_case)), "models/t", recursive=True)
    report = migrate.batch(["s3://models/t"], "s3://models/t-out", every=True, resume=True)
    assert report.counts == {"migrated": 2}
    assert sorted(item.dest for item in report.items) == ["s3://models/t-out/model", "s3://models/t-out/run"]
    assert migrate.batch(["s3://models/t"], "s3://models/t-out", every=True, resume=True).counts == {"skipped": 2}
    bucket.rm("models/t-out", recursive=True)


def test_one_that_is_sent_appears_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, load_case: Any) -> None:
    """The third file does not arrive: the state that was there stays, and nothing of the new one does."""
    source = str(load_case(H5).source)
    migrate.migrate_checkpoint(source, "memory://m/out")
    before = set(files.names("memory://m/out"))
    sent, order = remote.send, []

    def send(path: str, url: str) -> None:
        order.append(url.rsplit("/", 1)[-1])
        if len(order) == 3:
            raise OSError(5, "the line is cut")
        sent(path, url)

    monkeypatch.setattr(remote, "send", send)
    with pytest.raises(CheckpointError, match="what had been sent was removed"):
        migrate.migrate_checkpoint(source, "memory://m/out", overwrite=True)
    assert order[2] == "checkpoint", "the file that names the state comes last"
    assert set(files.names("memory://m/out")) == before
    _same("memory://m/out", source)


@pytest.mark.parametrize("target", [broad("keras"), broad("tf-keras"), "list"])
def test_single_files_are_sent_too(target: str, load_case: Any) -> None:
    dest = f"memory://single/model{ {'keras': '.keras', 'tf-keras': '.h5', 'list': '.npz'}[target] }"
    source = str(load_case(H5).source)
    report = migrate.migrate_checkpoint(source, dest, to=target, order="keras2:1" if target == "list" else None)
    assert report.written
    assert migrate.verify(source, dest, order="keras2:1" if target == "list" else None).ok


def test_what_is_not_there_or_not_known_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError, match="does not exist"):
        migrate.read("memory://nothing/here")
    with pytest.raises(UnknownFormatError, match="nowhere:// is not known"):
        migrate.read("nowhere://x/y")
    with pytest.raises(UnsupportedError, match="pip install gcsfs"):
        migrate.read("gs://bucket/ckpt")
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "gs://bucket/run/ckpt-5"\n')
    with pytest.raises(UnknownFormatError, match="names gs://bucket/run/ckpt-5"):
        migrate.read(tmp_path)


def test_folders_of_orbax_are_called_so(tmp_path: Path) -> None:
    """As CheckpointManager of orbax-checkpoint 0.12.8 names them."""
    step = tmp_path / "run" / "1"
    (step / "default" / "ocdbt.process_0").mkdir(parents=True)
    (step / "_CHECKPOINT_METADATA").write_text("{}")
    for folder in (tmp_path / "run", step, step / "default"):
        with pytest.raises(UnknownFormatError, match="Orbax"):
            migrate.read(folder)
        for every in (False, True):
            (item,) = migrate.batch([folder], tmp_path / "into", every=every).items
            assert "Orbax" in item.problem, item


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("s3://me:pw@host/a b", "s3://host/a b"),
        ("https://h/x?X-Amz-Signature=1&y=2 failed", "https://h/x failed"),
        ("mail@home and a?b stay", "mail@home and a?b stay"),
    ],
)
def test_credentials_are_not_shown(text: str, harmless: str) -> None:
    assert urls.shown(text) == harmless


def test_reports_name_no_credentials(site: servers.Web, tmp_path: Path) -> None:
    report = migrate.migrate_checkpoint(f"{site.url}/model.h5?token=secret", tmp_path / "out")
    assert "secret" not in json.dumps(report.to_dict(), default=str)


def test_a_file_that_could_not_be_replaced_is_still_there(monkeypatch: pytest.MonkeyPatch, load_case: Any) -> None:
    source = str(load_case(H5).source)
    dest = "memory://kept/list.npz"
    migrate.migrate_checkpoint(source, dest, to="list", order="keras2:1")
    before = fsspec.filesystem("memory").cat_file("/kept/list.npz")

    def send(path: str, url: str) -> None:
        raise OSError(5, "the line is cut")

    monkeypatch.setattr(remote, "send", send)
    with pytest.raises(CheckpointError, match="the line is cut"):
        migrate.migrate_checkpoint(source, dest, to="list", order="keras2:1", overwrite=True)
    assert fsspec.filesystem("memory").cat_file("/kept/list.npz") == before


@pytest.mark.parametrize("error", [OSError(5, "the line is cut"), KeyboardInterrupt()])
def test_what_stops_in_the_middle_leaves_the_older_state(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, load_case: Any
) -> None:
    source = str(load_case(H5).source)
    dest = f"memory://stopped/{type(error).__name__}"
    migrate.migrate_checkpoint(source, dest)
    system = fsspec.filesystem("memory")
    before = {path: system.cat_file(path) for path in system.find(dest)}
    send, sent = remote.send, list[str]()

    def stop_at_the_second(path: str, url: str) -> None:
        sent.append(url)
        if len(sent) > 1:
            raise error
        send(path, url)

    monkeypatch.setattr(remote, "send", stop_at_the_second)
    with pytest.raises((CheckpointError, KeyboardInterrupt)):
        migrate.migrate_checkpoint(source, dest, overwrite=True)
    assert {path: system.cat_file(path) for path in system.find(dest)} == before


def test_a_folder_in_one_of_the_same_name_is_listed() -> None:
    system = fsspec.filesystem("memory")
    system.pipe_file("/names/run/run", b"x")
    system.pipe_file("/names/run/other", b"x")
    assert files.names("memory://names/run") == ["other", "run"]
