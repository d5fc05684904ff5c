"""Files that hold no state, or hold it packed: each is named for what it is, with the command that unpacks it."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

import migrate
from migrate.errors import UnknownFormatError
from optim.errors import UnsupportedError
from tests.helpers.bundles import written
from tests.places import CORPUS, OBJECTS

H5 = CORPUS / "keras224-adam-eps-none-nested" / "source" / "model.h5"
SAVED_MODEL = OBJECTS / "serving_compressed"


def _zipped(folder: Path, inside: str) -> Path:
    """A SavedModel, as a web page offers it for download."""
    path = folder / "sm.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{inside}saved_model.pb", b"\x08\x01")
        archive.write(SAVED_MODEL / "variables.index", f"{inside}variables/variables.index")
    return path


def _message(path: Path) -> str:
    with pytest.raises(UnknownFormatError) as error:
        migrate.read(path)
    return str(error.value)


def _run(command: str, folder: Path) -> None:
    words = shlex.split(command)
    words[0] = sys.executable if words[0] == "python" else words[0]
    if shutil.which(words[0]) is None:
        pytest.fail(f"{words[0]} is not installed here")
    subprocess.run(words, cwd=folder, check=True, timeout=60)


@pytest.mark.parametrize("compress", [gzip, bz2, lzma], ids=["gz", "bz2", "xz"])
def test_a_compressed_file_comes_with_the_command_that_unpacks_it(compress: object, tmp_path: Path) -> None:
    suffix = {gzip: "gz", bz2: "bz2", lzma: "xz"}[compress]  # type: ignore[index]
    path = tmp_path / f"my model.h5.{suffix}"
    path.write_bytes(compress.compress(H5.read_bytes()))  # type: ignore[attr-defined]
    sentence, command = _message(path).split("\n")
    assert "is compressed" in sentence
    assert sentence.endswith(f"give {tmp_path / 'my model.h5'}")
    _run(command, tmp_path)
    assert migrate.read(tmp_path / "my model.h5").algorithm == "Adam"


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_a_tar_archive(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model.{suffix}"
    with tarfile.open(path, "w:gz" if suffix == "tar.gz" else "w") as archive:
        archive.add(H5, "model.h5")
    sentence, command = _message(path).split("\n")
    assert "is a tar archive" in sentence
    _run(command, tmp_path)
    assert (tmp_path / "model.h5").read_bytes() == H5.read_bytes()


@pytest.mark.parametrize("inside", ["", "export/1/"])
def test_a_zipped_saved_model(inside: str, tmp_path: Path) -> None:
    sentence, command = _message(_zipped(tmp_path, inside)).split("\n")
    assert f"give {tmp_path / 'sm' / inside}".rstrip("/") in sentence
    _run(command, tmp_path)
    assert (tmp_path / "sm" / inside / "saved_model.pb").exists()


def test_the_command_line_prints_the_command_on_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dtopt_cli import app

    (tmp_path / "model.h5.gz").write_bytes(gzip.compress(H5.read_bytes()))
    monkeypatch.setattr(sys, "argv", ["dtopt", "migrate", "inspect", str(tmp_path / "model.h5.gz")])
    with pytest.raises(SystemExit):
        app.main()
    assert capsys.readouterr().err.splitlines()[-1] == f"  gunzip -k {tmp_path / 'model.h5.gz'}"


def test_other_files_are_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("model/data.pkl", b"")
    assert "PyTorch" in _message(tmp_path / "model.pt")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.writestr("a.png", b"")
    assert "without a checkpoint: it holds a.png" in _message(tmp_path / "photos.zip")
    (tmp_path / "model.json").write_text(json.dumps({"class_name": "Sequential", "config": []}))
    assert "It holds no optimizer state" in _message(tmp_path / "model.json")


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("page.h5", b"\n<!DOCTYPE html><html></html>", "a web page"),
        ("answer.keras", b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "a web page or a server's"),
        (
            "model.json",
            b'{"format": "layers-model", "modelTopology": {"class_name": "Model"}}',
            "a model of TensorFlow.js",
        ),
        ("m.tflite", b"\x1c\0\0\0TFL3\x14\0\x20\0", "a TensorFlow Lite model"),
        ("m.safetensors", (90).to_bytes(8, "little") + b'{"w":{"dtype":"F32"}}', "a safetensors file"),
        ("m.onnx", b"\x08\x07\x12\x07pytorch", "an ONNX model"),
        ("old.pth", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "a file of PyTorch"),
        ("frozen.pb", b"\n\x05\n\x01x", "a graph of TensorFlow"),
        ("notes.txt", b"lr 0.1", "of no known format: it begins with b'lr 0.1'. dtopt reads .h5"),
    ],
)
def test_what_is_no_checkpoint_is_named(name: str, content: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert f"{name} is {what}" in _message(tmp_path / name)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 98209424\n"


@pytest.mark.parametrize(
    "name", ["m.h5", "m.keras", "m.index", "m.data-00000-of-00001", "saved_model.pb", "weights.pkl"]
)
def test_a_pointer_of_git_lfs_comes_with_the_command_that_fetches_the_file(name: str, tmp_path: Path) -> None:
    """A clone without Git LFS has them; each was damaged, truncated or of no known format."""
    written(tmp_path / "m", {"w": np.ones(1, np.float32)})
    (tmp_path / name).write_bytes(LFS)
    source = tmp_path if name == "saved_model.pb" else tmp_path / name
    sentence, command = _message(source).split("\n")
    assert sentence.startswith(f"{tmp_path / name} is a pointer of Git LFS")
    assert command == "git lfs pull"


def test_an_annexed_file_that_is_not_here(tmp_path: Path) -> None:
    (tmp_path / "m.h5").symlink_to(".git/annex/objects/x")
    assert "m.h5 cannot be read: it is a link to .git/annex/objects/x, which does not exist" in _message(
        tmp_path / "m.h5"
    )


def test_a_zip_with_the_name_of_a_model_is_unpacked_next_to_it(tmp_path: Path) -> None:
    """The command named the archive itself as the folder to unpack it to."""
    with zipfile.ZipFile(tmp_path / "model.h5", "w") as archive:
        archive.write(H5, "inside/model.h5")
    sentence, command = _message(tmp_path / "model.h5").split("\n")
    _run(command, tmp_path)
    assert migrate.read(sentence.partition("give ")[2]).algorithm == "Adam"


def test_a_saved_model_without_its_variables(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01")
    with pytest.raises(migrate.DamagedFileError, match=r"has no file variables/variables\.index"):
        migrate.read(tmp_path)


def test_weights_alone_are_migrated_with_the_options_that_the_refusal_names(tmp_path: Path) -> None:
    """--weights-only alone was refused with advice that ended there."""
    shutil.copy(H5, tmp_path / "m.h5")
    with h5py.File(tmp_path / "m.h5", "r+") as file:
        del file["optimizer_weights"], file.attrs["training_config"]
    with pytest.raises(UnsupportedError, match=r"weights_only=True, .*--set class_name=Adam"):
        migrate.read(tmp_path / "m.h5")
    done = migrate.migrate_checkpoint(
        tmp_path / "m.h5", tmp_path / "new.keras", weights_only=True, overrides={"class_name": "Adam"}
    )
    assert (done.optimizer, done.iterations) == ("Adam", 0)


def test_the_file_checkpoint_and_the_graph_stand_for_their_checkpoint(tmp_path: Path) -> None:
    arrays = {"w": np.ones(3, np.float32), "w/Momentum": np.full(3, 2, np.float32), "global_step": np.array(4)}
    prefix = written(tmp_path / "model.ckpt-4", arrays)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-4"\n')
    Path(f"{prefix}.meta").write_bytes(b"")
    config = {"class_name": "MomentumOptimizer", "config": {"learning_rate": 0.1, "momentum": 0.9}}
    for source in (tmp_path / "checkpoint", f"{prefix}.index"):
        assert migrate.read(source, optimizer_config=config).iterations == 4
