"""Numbers that a run has spoiled are carried, said and never called exact, however large the arrays are."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

import migrate
from migrate.evidence import value_checks
from optim.errors import DtoptError
from tests.places import CORPUS

SOURCE = CORPUS / "keras231-adam-amsgrad-mlp" / "source" / "model.h5"
SURE = {"iterations": 5}
PARTS = {"m": 0, "v": 1, "vhat": 2}
"""Where a slot of Keras 2.3's Adam is in its list, in thirds behind the counter."""


def _altered(path: Path, slot: str | None, value: float) -> None:
    """A copy in which a number of the first variable, or of its slot, is another one."""
    shutil.copy(SOURCE, path)
    with h5py.File(path, "r+") as file:
        slots = [name.decode() for name in file["optimizer_weights"].attrs["weight_names"]][1:]
        if slot is None:
            layer = file["model_weights"][file["model_weights"].attrs["layer_names"][0]]
            array = layer[layer.attrs["weight_names"][0]]
        else:
            array = file["optimizer_weights"][slots[PARTS[slot] * (len(slots) // 3)]]
        changed = array[()]
        changed.flat[1] = value
        array[...] = changed


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize(
    ("slot", "value", "message"),
    [
        ("m", np.nan, "slot m holds NaN or infinity"),
        ("v", np.inf, "slot v holds NaN or infinity"),
        (None, -np.inf, "the variable holds NaN or infinity"),
        ("vhat", 0.0, "slot vhat is the largest v so far and is below it"),
    ],
)
def test_what_is_spoiled_is_said(
    slot: str | None, value: float, message: str, threads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(value_checks, "WORTH_THREADS", 0 if threads else 1 << 62)
    source = tmp_path / "model.h5"
    _altered(source, slot, value)
    report = migrate.migrate_checkpoint(source, tmp_path / "slots")
    assert report.fidelity == "approximate"
    name = next(iter(migrate.read(source).slots["m"]))
    assert [reason for reason in report.reasons if message in reason] == [f"{name}: {message}"]


def test_squares_are_not_negative() -> None:
    """In a list without names they tell of another order before; here they are not."""
    state = migrate.read(SOURCE)
    name, array = next(iter(state.slots["v"].items()))
    negative = replace(array, load=lambda: -array.load(), extent=None)
    result = value_checks.checked(replace(state, slots={**state.slots, "v": {**state.slots["v"], name: negative}}))
    assert f"{name}: slot v is a sum of squares and holds negative numbers" in [
        origin.doubt for origin in result.origins
    ]


def test_damage_that_a_thread_meets_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_checks, "WORTH_THREADS", 0)
    state = migrate.read(SOURCE)

    def broken(*_: object) -> value_checks.Seen:
        raise migrate.DamagedFileError("it became shorter")

    monkeypatch.setattr(value_checks, "_of_one", broken)
    with pytest.raises(migrate.DamagedFileError, match="it became shorter"):
        value_checks.checked(state)
    with pytest.raises(migrate.DamagedFileError, match="it became shorter"):
        migrate.migrate_checkpoint(SOURCE, tmp_path / "slots")
    assert list(tmp_path.iterdir()) == []


def test_what_only_numbers_deny_is_refused_by_strict_and_leaves_nothing(tmp_path: Path) -> None:
    """A slots target is written while they are read."""
    source = tmp_path / "model.h5"
    _altered(source, "m", np.nan)
    with pytest.raises(migrate.StrictError, match="slot m holds NaN"):
        migrate.migrate_checkpoint(source, tmp_path / "slots", strict=True, overrides=SURE)
    assert list(tmp_path.iterdir()) == [source]
    assert migrate.migrate_checkpoint(SOURCE, tmp_path / "slots", strict=True, overrides=SURE).fidelity == "exact"


@pytest.mark.parametrize("threads", [False, True])
def test_a_disk_that_is_full_is_not_taken_for_a_source_that_cannot_be_read(
    threads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(value_checks, "WORTH_THREADS", 0 if threads else 1 << 62)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DtoptError, match=r"writing .*slots failed: .*No space left"):
        migrate.migrate_checkpoint(SOURCE, tmp_path / "slots")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("threads", [False, True])
def test_progress_only_grows(threads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_checks, "WORTH_THREADS", 0 if threads else 1 << 62)
    reports: list[tuple[int, int]] = []
    migrate.migrate_checkpoint(SOURCE, tmp_path / "slots", progress=lambda done, total: reports.append((done, total)))
    assert [done for done, _ in reports] == sorted({done for done, _ in reports})
    assert reports[-1][0] == reports[-1][1]
