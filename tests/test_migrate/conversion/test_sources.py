"""A source is regular files that stay what they were, and whatever a damaged one raises becomes an error of ours."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
from dtopt_cli import output
from migrate.bytes import messages
from migrate.conversion import error_boundary, inspection
from migrate.errors import ContradictionError, DamagedFileError, UnknownFormatError
from migrate.proof import verification
from migrate.writers import slots
from optim.errors import HyperparameterError
from tests.places import CORPUS

H5 = CORPUS / "keras224-adam-eps-none-nested" / "source" / "model.h5"


@pytest.mark.parametrize("kind", ["fifo", "zero"])
@pytest.mark.parametrize("name", ["x.h5", "ckpt.index", "folder/checkpoint"])
def test_what_is_no_regular_file_is_refused_at_once(kind: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    source = path.parent if name.startswith("folder") else tmp_path / name.removesuffix(".index")
    with pytest.raises(UnknownFormatError, match="not a regular file"):
        migrate.read(source)


@pytest.mark.parametrize("how", ["in place", "renamed over"])
def test_a_source_that_is_rewritten_meanwhile_leaves_no_target(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "model.h5"
    shutil.copy(H5, source)
    write = slots.write

    def late(*arguments: Any, **options: Any) -> None:
        other = tmp_path / "other"
        shutil.copy(H5, other)
        if how == "in place":
            source.write_bytes(other.read_bytes())
        else:
            os.replace(other, source)
        write(*arguments, **options)

    monkeypatch.setattr(slots, "write", late)
    with pytest.raises(DamagedFileError, match="was changed while it was read"):
        migrate.migrate_checkpoint(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _moved_on(source: Path) -> None:
    """The next state of the same training, of the same size and in the same place."""
    with h5py.File(source, "r+") as file:
        file["optimizer_weights/Adam/iterations:0"][...] += 3
        for name in file["optimizer_weights"].attrs["weight_names"][1:]:
            file["optimizer_weights"][name][...] *= np.float32(1.5)


def test_a_state_whose_source_moved_on_is_not_written(tmp_path: Path) -> None:
    """Arrays are read when they are asked for: the old counter would go with the new slots."""
    source = Path(shutil.copy(H5, tmp_path / "model.h5"))
    state = migrate.read(source)
    _moved_on(source)
    with pytest.raises(DamagedFileError, match="was changed while it was read"):
        migrate.write(state, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("of", ["verify", "inspect"])
def test_a_source_that_moves_on_while_it_is_looked_at_is_refused(
    of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(shutil.copy(H5, tmp_path / "model.h5"))
    migrate.migrate_checkpoint(source, tmp_path / "out")
    module, name = (verification, "_compared") if of == "verify" else (inspection, "inspection")
    look = getattr(module, name)

    def then(*arguments: Any, **options: Any) -> Any:
        result = look(*arguments, **options)
        _moved_on(source)
        return result

    monkeypatch.setattr(module, name, then)
    with pytest.raises(DamagedFileError, match="was changed while it was read"):
        migrate.verify(source, tmp_path / "out") if of == "verify" else migrate.inspect(source, stats=True)


def test_the_graph_beside_a_checkpoint_is_a_part_of_it(tmp_path: Path) -> None:
    folder = CORPUS / "tf115-train-sgd-expdecay-convbn" / "source"
    shutil.copytree(folder, tmp_path / "source")
    graph = next((tmp_path / "source").glob("*.meta"))
    state = migrate.read(graph.with_suffix(""))
    graph.write_bytes(graph.read_bytes())
    with pytest.raises(DamagedFileError, match=r"meta was changed while it was read"):
        migrate.write(state, tmp_path / "out")


@pytest.mark.parametrize("raised", [OSError(22, "Invalid argument"), KeyError("a"), OverflowError(), MemoryError()])
def test_exceptions_of_libraries_become_one_of_ours(raised: Exception) -> None:
    with pytest.raises(DamagedFileError, match=r"x\.keras cannot be read"), error_boundary.reading("x.keras"):
        raise raised


def test_messages_are_one_short_line_without_control_characters() -> None:
    shown = output.message("a\x1b[31mred\nline " + "x" * 4000 + "\udc80")
    assert len(shown) == messages.LONGEST
    assert "\x1b" not in shown
    assert "\\x1b[31mred line" in shown


def test_what_no_optimizer_takes_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for name, value in (("beta_1", 1.5), ("learning_rate", -1.0), ("epsilon", -1e-3), ("decay", -0.5)):
        with pytest.raises(HyperparameterError, match=name):
            migrate.migrate_checkpoint(H5, tmp_path / "out", overrides={name: value})
    assert not (tmp_path / "out").exists()


def test_hints_add_and_only_set_overrides() -> None:
    hyperparameters = dict(migrate.read(H5).hyperparameters)
    only = {"class_name": "Adam", "config": {"iterations": 5}}
    counted = migrate.read(H5).iterations
    with pytest.raises(ContradictionError, match=rf"iterations is {counted} .* and {counted + 1} in"):
        migrate.read(H5, optimizer_config={**only, "config": {"iterations": counted + 1}})
    assert dict(migrate.read(H5, optimizer_config={**only, "config": {}}).hyperparameters) == hyperparameters
    with pytest.raises(ContradictionError, match=r"beta_1 is 0\.8999.* and 0\.5"):
        migrate.read(H5, optimizer_config={**only, "config": {"beta_1": 0.5}})
    state = migrate.read(H5, overrides={"beta_1": 0.5})
    assert state.hyperparameters["beta_1"] == np.float32(0.5)
    assert "overrides 0.8999" in next(o.where for o in state.origins if o.subject == "beta_1")
