"""A SavedModel with an experimental optimizer of TF 2.9: listed among the model's variables, it ignores constraints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import migrate
from migrate.conversion import targets
from tests.helpers import next_steps
from tests.places import KERAS

CONSTRAINED = KERAS / "constrained"
SOURCE = CONSTRAINED / "saved_model"


def test_the_optimizers_variables_are_none_of_the_model(tmp_path: Path) -> None:
    report = migrate.migrate_checkpoint(SOURCE, tmp_path / "slots")
    assert report.fidelity == "exact"
    assert next_steps.of_slots(tmp_path / "slots", np.load(CONSTRAINED / "oracle.npz"), 5) < next_steps.NEAR


@pytest.mark.parametrize("to", ["keras", "tf-keras"])
def test_a_model_whose_constraint_acts_in_the_target_alone_is_not_exact(to: str, tmp_path: Path) -> None:
    report = migrate.migrate_checkpoint(SOURCE, tmp_path / f"x{targets.ENDINGS[to]}", dry_run=True)
    assert report.fidelity == "approximate"
    assert "bound: optimizers of TF 2.9 and 2.10's experimental ignore constraints" in " ".join(report.reasons)
