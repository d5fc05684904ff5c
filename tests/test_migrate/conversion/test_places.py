"""Targets under names and on file systems that are not the usual ones."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import migrate
from migrate.errors import TargetExistsError
from optim.errors import CheckpointError
from tests.places import CORPUS

SOURCE = CORPUS / "tf24-adam-convbn" / "source" / "model.h5"
SUFFIX = {"slots": "", "keras": ".keras", "tf-keras": ".h5", "list": ".npz"}
MOST = 255
"""Bytes of a name on Linux and macOS."""


@pytest.mark.parametrize("to", SUFFIX)
@pytest.mark.parametrize("letter", ["x", "é", "\n"])
def test_a_name_as_long_as_can_be(to: str, letter: str, tmp_path: Path) -> None:
    room = MOST - len(SUFFIX[to])
    dest = tmp_path / (letter * (room // len(letter.encode())) + SUFFIX[to])
    assert migrate.migrate_checkpoint(SOURCE, dest, to=to).written
    assert os.listdir(tmp_path) == [dest.name]
    with pytest.raises(TargetExistsError):
        migrate.migrate_checkpoint(SOURCE, dest, to=to)


@pytest.mark.parametrize("to", ["keras", "tf-keras", "list"])
def test_a_file_system_without_hard_links(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAT, SMB, and drives and buckets that are mounted."""
    dest, answer = tmp_path / f"out{SUFFIX[to]}", [errno.EPERM, errno.ENOTSUP, errno.EIO]

    def link(path: Any, name: Any) -> None:
        raise OSError(answer[0], os.strerror(answer[0]))

    monkeypatch.setattr(os, "link", link)
    for _ in range(2):
        assert migrate.migrate_checkpoint(SOURCE, dest, to=to).written
        assert os.listdir(tmp_path) == [dest.name]
        dest.unlink()
        answer.pop(0)
    with pytest.raises(CheckpointError, match="nothing was changed"):
        migrate.migrate_checkpoint(SOURCE, dest, to=to)
    assert os.listdir(tmp_path) == []


def test_a_file_that_comes_meanwhile_stays_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dest = tmp_path / "out.npz"

    def link(path: Any, name: Any) -> None:
        dest.write_text("another's")
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(TargetExistsError, match="by somebody else"):
        migrate.migrate_checkpoint(SOURCE, dest, to="list")
    assert dest.read_text() == "another's"
    assert os.listdir(tmp_path) == [dest.name]
