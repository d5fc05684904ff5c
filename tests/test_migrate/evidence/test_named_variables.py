"""`--variables` as it is copied from a report and edited: what the source says otherwise is never called exact."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import migrate
from migrate.errors import ContradictionError
from optim.errors import HyperparameterError
from tests import adversary
from tests.places import CORPUS

AS_NAMED = "--set slot_order=variables"


def _listed(name: str) -> tuple[Path, dict[str, Any], list[dict[str, Any]]]:
    """A source, the hints that it needs, and the list of its trained variables."""
    case = adversary.case(CORPUS / name)
    source = case.folder / case.source
    state = migrate.read(source, **case.hints)
    return source, case.hints, [{"name": v.name, "shape": list(v.shape)} for v in state.variables if v.trainable]


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("keras38-adam-convbn", 1, 2),
        ("extra-keras311-muon-nested-keras", 1, 3),
        ("extra-keras312-muon-ema-weights", 2, 6),
        ("extra-keras312-torch-sgd-frozen-keras", 1, 3),
        ("extra-tfk221-new-adam-amsgrad-same-shapes-keras", 0, 2),
    ],
)
def test_an_order_that_the_model_denies_is_confirmed_first(name: str, one: int, other: int) -> None:
    """The next steps would be 4e3 to 2e5 times what rounding explains off."""
    source, hints, listed = _listed(name)
    sound = migrate.read(source, variables=listed, **hints)
    assert AS_NAMED not in " ".join(sound.reasons)
    turned = copy.deepcopy(listed)
    turned[one], turned[other] = turned[other], turned[one]
    state = migrate.read(source, variables=turned, **hints)
    assert state.fidelity == "approximate"
    assert AS_NAMED in " ".join(state.reasons)
    meant = migrate.read(source, variables=turned, overrides={"slot_order": "variables"}, **hints)
    assert AS_NAMED not in " ".join(meant.reasons)
    assert meant.fidelity == sound.fidelity


def test_the_order_of_a_list_needs_a_list() -> None:
    source, hints, _ = _listed("keras38-adam-convbn")
    with pytest.raises(HyperparameterError, match="slot_order is 'variables'; it takes source"):
        migrate.read(source, overrides={"slot_order": "variables"}, **hints)


@pytest.mark.parametrize("name", ["extra-tf215-adam-alone", "extra-tf29-exp-sgd-alone"])
def test_names_of_which_the_slots_know_nothing_are_refused(name: str) -> None:
    source, hints, listed = _listed(name)
    for more in (listed[0], {"name": "more/kernel", "shape": [3, 2]}):
        with pytest.raises(ContradictionError, match="which the source does not have"):
            migrate.read(source, variables=[*listed, more], **hints)


def test_what_a_graph_updates_is_not_left_out() -> None:
    source, hints, listed = _listed("tf115-train-sgd-expdecay-convbn")
    assert migrate.read(source, variables=listed, **hints).fidelity == "exact"
    with pytest.raises(ContradictionError, match=r"leaves out conv/kernel.* is updated in its graph"):
        migrate.read(source, variables=listed[1:], **hints)


def test_a_list_of_nothing_is_refused() -> None:
    source, hints, _ = _listed("tf215-legacy-sgd-mlp")
    with pytest.raises(HyperparameterError, match="names no variable"):
        migrate.read(source, variables=[], **hints)
