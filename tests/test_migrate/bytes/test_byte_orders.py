"""Files whose numbers have the other order of bytes, as a big-endian machine writes them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import migrate
from tests import adversary
from tests.places import CORPUS


def _turned(values: np.ndarray) -> np.ndarray:
    return values.astype(values.dtype.newbyteorder(">"))


def _turn_h5(source: Path, path: Path) -> None:
    with h5py.File(source) as old, h5py.File(path, "w") as new:
        new.attrs.update(old.attrs)

        def copy(name: str, item: h5py.Group | h5py.Dataset) -> None:
            if isinstance(item, h5py.Group):
                twin = new.create_group(name)
            else:
                twin = new.create_dataset(name, data=_turned(np.asarray(item[()])))
            twin.attrs.update(item.attrs)

        old.visititems(copy)


def _turn_npz(source: Path, path: Path) -> None:
    with np.load(source) as old:
        np.savez(path, **{name: _turned(old[name]) for name in old.files})


@pytest.mark.parametrize(
    ("name", "turn"),
    [
        ("keras224-adam-eps-none-nested", _turn_h5),
        ("tf215-new-sgd-gclip-weights-mlp", _turn_npz),
    ],
)
def test_the_numbers_are_the_same(name: str, turn: object, tmp_path: Path) -> None:
    case = adversary.case(CORPUS / name)
    source = case.folder / case.source
    turned = tmp_path / source.name
    turn(source, turned)  # type: ignore[operator]
    assert adversary.fingerprint(migrate.read(turned, **case.hints)) == adversary.fingerprint(
        migrate.read(source, **case.hints)
    )
    migrate.migrate_checkpoint(turned, tmp_path / "slots", **case.hints)
    assert adversary.error(CORPUS / name, tmp_path / "slots") <= adversary.ROUNDING
    assert migrate.verify(turned, tmp_path / "slots", **case.hints).ok
