"""`verify` of a list: every array, bit for bit, and the exit codes of the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import migrate
from dtopt_cli.app import app
from migrate.errors import DamagedFileError
from optim.errors import HyperparameterError
from tests.places import CORPUS

SOURCE = str(CORPUS / "keras231-adam-amsgrad-mlp" / "source" / "model.h5")


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    path = tmp_path / "list.npz"
    migrate.migrate_checkpoint(SOURCE, path, to="list")
    return path


def _changed(path: Path, **members: Any) -> None:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    arrays.update(members)
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def test_a_list_is_what_its_source_holds(dest: Path) -> None:
    result = migrate.verify(SOURCE, dest)
    assert result.ok
    assert result.differences == ()
    assert result.parity is None
    assert "no step is compared" in result.notes[0]


def test_another_order_is_another_list(dest: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.npz"
    migrate.migrate_checkpoint(SOURCE, other, to="list", order="optimizer")
    assert migrate.verify(SOURCE, other, order="optimizer").ok
    assert not migrate.verify(SOURCE, other).ok
    assert not migrate.verify(SOURCE, dest, order="optimizer").ok


def test_an_order_of_what_is_no_list_is_refused(tmp_path: Path) -> None:
    migrate.migrate_checkpoint(SOURCE, tmp_path / "slots")
    with pytest.raises(HyperparameterError, match=r"slots is not a list: remove it"):
        migrate.verify(SOURCE, tmp_path / "slots", order="keras2")


def test_each_difference_is_named(dest: Path) -> None:
    with np.load(dest) as file:
        first, second = file["arr_1"].copy(), file["arr_2"]
    first.flat[0] = np.nextafter(first.flat[0], np.float32(1))
    _changed(dest, arr_0=np.int64(99), arr_1=first, arr_2=second.astype(np.float64))
    result = migrate.verify(SOURCE, dest)
    assert not result.ok
    text = "\n".join(result.differences)
    assert "arr_0" in text
    assert "differs in 1 of 35 numbers" in text
    assert "is float64[7], not float32[7]" in text
    assert len(result.differences) == 3


def test_missing_and_added_arrays_are_differences(dest: Path) -> None:
    with np.load(dest) as file:
        count = len(file.files)
    _changed(dest, **{f"arr_{count}": np.zeros(2, np.float32)})
    assert f"it holds {count + 1} arrays, not {count}" in migrate.verify(SOURCE, dest).differences[0]
    _changed(dest, **{f"arr_{count}": None, f"arr_{count - 1}": None})
    assert f"it holds {count - 1} arrays, not {count}" in migrate.verify(SOURCE, dest).differences[0]


@pytest.mark.parametrize("place", ["magic", "data", "directory"])
def test_a_damaged_list_cannot_be_read(dest: Path, place: str) -> None:
    data = bytearray(dest.read_bytes())
    with np.load(dest) as file:
        array = file["arr_1"].tobytes()
    data[{"magic": 0, "data": bytes(data).find(array) + 5, "directory": -20}[place]] ^= 0xFF
    dest.write_bytes(data)
    with pytest.raises(DamagedFileError, match="cannot be read"):
        migrate.verify(SOURCE, dest)


def test_exit_codes(dest: Path) -> None:
    run = CliRunner()
    words = ["migrate", "verify", SOURCE, str(dest)]
    assert run.invoke(app, words).exit_code == 0
    document = json.loads(run.invoke(app, [*words, "--json"]).stdout)
    assert document["ok"] is True
    assert run.invoke(app, [*words, "--order", "optimizer"]).exit_code == 1
    dest.write_bytes(dest.read_bytes()[:100])
    broken = run.invoke(app, words)
    assert isinstance(broken.exception, DamagedFileError)
    assert broken.exception.exit_code == 3
