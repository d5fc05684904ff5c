"""`bench migrate`: its inputs are what `migrate` reads, and its rounds with a stand-in for the command."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import migrate
from bench.errors import OptionError, UnknownNameError
from bench.kinds import from_json
from bench.migration import commands, run
from bench.migration.commands import CommandError
from bench.migration.inputs import ADAM, INPUTS, LAYERS, WIDTH, rows_for, tensors
from tests.helpers.timing import HANGS

STAND_IN = """
import pathlib, shutil, sys
command, source, *rest = sys.argv[1:]
for path in pathlib.Path(source).parent.glob(pathlib.Path(source).name + "*"):
    if command == "checkpoint":
        pathlib.Path(rest[0]).mkdir(exist_ok=True)
        shutil.copy(path, rest[0])
    elif command == "verify":
        assert (pathlib.Path(rest[0]) / path.name).read_bytes() == path.read_bytes()
    elif {broken}:
        sys.exit("no such thing as\\n" + path.name)
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> list[str]:
    script = tmp_path / "migrate.py"
    script.write_text(STAND_IN.format(broken=False))
    return [sys.executable, str(script)]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Commands use the byte code that is there, and a tensorflow that is there at once: a run compiles TensorFlow anew,
    which takes 20 s, and neither the stand-in nor what makes an .h5 or a .keras needs it."""
    made, light = commands.environment, tmp_path_factory.mktemp("light")
    (light / "tensorflow.py").touch()

    def without_prefix(folder: Path) -> dict[str, str]:
        kept = {name: value for name, value in made(folder).items() if name != "PYTHONPYCACHEPREFIX"}
        return {**kept, "PYTHONPATH": os.pathsep.join([str(light), kept["PYTHONPATH"]])}

    monkeypatch.setattr(commands, "environment", without_prefix)


@pytest.mark.parametrize("made", INPUTS, ids=lambda one: one.name)
def test_inputs_are_what_migrate_reads(made: run.Input, tmp_path: Path) -> None:
    source, rows = tmp_path / made.file, 3
    made.make(source, rows)
    state = migrate.read(source, optimizer_config=ADAM if made.needs_config else None)
    assert (state.algorithm, state.iterations) == ("Adam", 10)
    expected = {(slot, name): values.copy() for slot, name, values in tensors(rows) if slot}
    assert {slot: len(found) for slot, found in state.slots.items()} == {"m": 2 * LAYERS, "v": 2 * LAYERS}
    for slot, found in state.slots.items():
        values = sorted((array.load() for array in found.values()), key=lambda a: (a.ndim, float(a.flat[0])))
        wanted = sorted(
            (array for (which, _), array in expected.items() if which == slot), key=lambda a: (a.ndim, float(a.flat[0]))
        )
        assert all(np.array_equal(a, b) for a, b in zip(values, wanted, strict=True))


@pytest.mark.usefixtures("compiled")
def test_rounds_give_rows(stand_in: list[str], tmp_path: Path) -> None:
    size = 3_000_000
    told: list[str] = []
    found = run.run(
        stand_in, formats=["h5"], size=size, rounds=2, folder=tmp_path, progress=lambda what, *_: told.append(what)
    )
    (row,) = found.rows
    assert (row.status, row.format, row.tensor_bytes) == ("ok", "h5", size)
    assert row.bytes == pytest.approx(size, rel=0.2)
    assert row.largest_tensor_bytes == rows_for(size) * WIDTH * 4
    assert [len(command.seconds) for command in row.commands] == [2] * 6
    assert all(command.peak_bytes > 1e6 for command in row.commands if not command.name.startswith("cp"))
    assert row.of_copy.rounds == 2
    assert told == ["making h5", "h5, round 1", "h5, round 2"]
    assert [path.name for path in tmp_path.iterdir()] == ["migrate.py"]  # nothing is left
    assert from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.usefixtures("compiled")
def test_a_command_that_fails_is_a_row_with_what_it_said(tmp_path: Path) -> None:
    script = tmp_path / "migrate.py"
    script.write_text(STAND_IN.format(broken=True))
    found = run.run([sys.executable, str(script)], formats=["keras"], size=400_000, rounds=1, folder=tmp_path)
    assert found.rows[0].status == "failed"
    assert found.rows[0].reason.endswith("ended with 1: model.keras")


def test_byte_code_lies_in_the_folder_of_the_run_and_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    commands.run([sys.executable, "-c", "import fractions"], commands.environment(tmp_path), tmp_path, timeout=HANGS)
    assert list((tmp_path / "bytecode").rglob("fractions*.pyc"))


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(CommandError, match="took longer than 1 s"):
        commands.run(words, commands.environment(tmp_path), tmp_path, timeout=1.0)


def test_what_cannot_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="h5, checkpoint, keras"):
        run.run(["x"], formats=["onnx"])
    with pytest.raises(OptionError, match="no folder"):
        run.run(["x"], folder=tmp_path / "absent")
    with pytest.raises(OptionError, match="smaller --size"):
        run.run(["x"], size=10**18, folder=tmp_path)
