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

import pytest

import migrate
from migrate.errors import UnknownFormatError
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


def test_the_file_checkpoint_and_the_graph_stand_for_their_checkpoint(tmp_path: Path) -> None:
    import numpy as np

    arrays = {"w": np.ones(3, np.float32), "w/Momentum": np.full(3, 2, np.float32), "global_step": np.array(4)}
    prefix = written(tmp_path / "model.ckpt-4", arrays)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-4"\n')
    Path(f"{prefix}.meta").write_bytes(b"")
    config = {"class_name": "MomentumOptimizer", "config": {"learning_rate": 0.1, "momentum": 0.9}}
    for source in (tmp_path / "checkpoint", f"{prefix}.index"):
        assert migrate.read(source, optimizer_config=config).iterations == 4
