"""Names of Keras 3's slots in an `.h5`, `adam/dense_kernel_momentum`: they say whose each is, and deny the wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
from migrate.errors import ContradictionError
from tests import adversary
from tests.places import CORPUS

ADAM, SHORT, SCALED = (
    "extra-keras36-adam-order-trap-h5",
    "extra-keras31-rmsprop-same-shapes-h5",
    "extra-keras36-adam-lss-mixed-h5",
)
"""Layers of one shape; names before 3.4, without the optimizer's and without the layer's; a LossScaleOptimizer."""


def _source(case: str) -> Path:
    return CORPUS / case / "source" / "model.h5"


def _hint(state: migrate.OptimizerState, order: list[int]) -> list[dict[str, Any]]:
    trained = [v for v in state.variables if v.trainable]
    return [{"name": trained[i].name, "shape": list(trained[i].shape)} for i in order]


@pytest.mark.parametrize("case", [ADAM, SHORT, SCALED])
def test_names_say_whose_each_slot_is(case: str, load_case: Any, tmp_path: Path) -> None:
    state, real = migrate.read(_source(case)), load_case(case)
    assert (state.fidelity, set(state.matched.values())) == ("exact", {"name"})
    assert state.iterations == int(real.oracle["iterations"])
    migrate.migrate_checkpoint(_source(case), tmp_path / "slots")
    assert adversary.error(CORPUS / case, tmp_path / "slots") < 1.2  # what rounding explains


@pytest.mark.parametrize("case", [ADAM, SHORT])
def test_variables_in_another_order_than_the_names_are_refused(case: str) -> None:
    state = migrate.read(_source(case))
    order = list(range(sum(bool(v.trainable) for v in state.variables)))
    same = migrate.read(_source(case), variables=_hint(state, order))
    assert (same.fidelity, same.slots.keys()) == ("exact", state.slots.keys())
    last = -2 if case == ADAM else -1  # two of one shape
    order[0], order[last] = order[last], order[0]
    with pytest.raises(ContradictionError, match="by their names the slots in the list are of"):
        migrate.read(_source(case), variables=_hint(state, order))


Rename = Callable[[list[str]], list[str]]


def _renamed(path: Path, rename: Rename, *, whole: bool) -> None:
    """Change the list of names, and with `whole` also the arrays' own names, so that the list still names them all."""
    with h5py.File(path, "r+") as file:
        group = file["optimizer_weights"]
        old = [np.asarray(name).astype(str).item() for name in group.attrs["weight_names"]]
        new = rename(old)
        arrays = [group[name][()] for name in old]
        for name in old if whole else ():
            del group[name]
        for name, array in zip(new, arrays, strict=True) if whole else ():
            group[name] = array
        group.attrs["weight_names"] = [name.encode() for name in new]


def _swapped(*pairs: tuple[str, str]) -> Rename:
    turned = {a: b for pair in pairs for a, b in (pair, pair[::-1])}
    return lambda names: [turned.get(name, name) for name in names]


def _slot(layer: int, slot: str) -> str:
    return f"adam/sequential_dense_{layer}_kernel_{slot}"


def _of_two(*slots: str) -> Rename:
    return _swapped(*((_slot(2, slot), _slot(1, slot)) for slot in slots))


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    "rename",
    [
        _of_two("momentum"),
        _of_two("momentum", "velocity"),
        _swapped((_slot(2, "momentum"), _slot(2, "velocity"))),
    ],
)
def test_names_that_deny_the_order_are_refused(rename: Rename, whole: bool, tmp_path: Path) -> None:
    shutil.copy(_source(ADAM), path := tmp_path / "model.h5")
    _renamed(path, rename, whole=whole)
    with pytest.raises(ContradictionError, match="names and order contradict each other"):
        migrate.read(path)


def test_one_name_that_fits_nothing_is_refused(tmp_path: Path) -> None:
    shutil.copy(_source(ADAM), path := tmp_path / "model.h5")
    _renamed(path, lambda names: [*names[:-1], f"{names[-1]}2"], whole=True)
    with pytest.raises(ContradictionError, match=r"position 5 in the list.*do not belong to one variable of the model"):
        migrate.read(path)


def test_names_that_say_nothing_leave_the_order(tmp_path: Path) -> None:
    shutil.copy(_source(ADAM), path := tmp_path / "model.h5")
    _renamed(path, lambda names: [*names[:2], *(f"adam/w{i}" for i in range(len(names) - 2))], whole=True)
    assert set(migrate.read(path).matched.values()) == {"position"}
