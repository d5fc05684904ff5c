"""Optimizers under a strategy: of TF 2.9's experimental, whose variables are as nameless as DTensor's, and with
variables in parts on servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from tests.helpers import next_steps
from tests.places import STRATEGIES

MIRRORED = STRATEGIES / "mirrored"
PARTS = STRATEGIES / "parameter_server"
BETAS = {"learning_rate": 0.05, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
AVERAGES = {"use_ema": True, "ema_momentum": 0.6, "ema_overwrite_frequency": 4}
NO_LIMITS = dict.fromkeys(("clipnorm", "clipvalue", "global_clipnorm"))
CONFIGS: dict[str, dict[str, Any]] = {
    "clipped": {"class_name": "Adam", "config": {**BETAS, "amsgrad": False, "clipnorm": 0.3}},
    "averaged": {
        "class_name": "SGD",
        "config": {"learning_rate": 0.05, "momentum": 0.0, "nesterov": False, **AVERAGES, **NO_LIMITS},
    },
    "table": {"class_name": "Adamax", "config": BETAS},
}


def _read(name: str) -> Any:
    return migrate.read(MIRRORED / name / "ckpt-1", optimizer_config=CONFIGS[name])


@pytest.mark.parametrize(("name", "overrides"), [("clipped", {"clipnorm": 0.3}), ("averaged", {})])
def test_limits_and_averages_act(name: str, overrides: dict[str, Any], tmp_path: Path) -> None:
    source, target = MIRRORED / name / "ckpt-1", tmp_path / "slots"
    overrides = {**overrides, "slot_order": "source"}
    report = migrate.migrate_checkpoint(source, target, optimizer_config=CONFIGS[name], overrides=overrides)
    assert report.fidelity == "exact"
    assert next_steps.of_slots(target, np.load(MIRRORED / name / "oracle.npz"), 5) < next_steps.NEAR


def test_a_limit_may_be_one_that_dtensors_optimizers_ignored() -> None:
    reasons = " ".join(_read("clipped").reasons)
    assert "DTensor's optimizers of TF 2.9 ignored it" in reasons
    assert "--set clipnorm=0.3 or --set clipnorm=none" in reasons


def test_tables_may_have_sparse_gradients() -> None:
    assert "--set repeated_rows=absent" in " ".join(_read("table").reasons)


def test_parts_on_servers_have_the_places_of_what_they_are_parts_of(tmp_path: Path) -> None:
    """Called as their keys, they hid that one is a table, whose rows stay without a gradient."""
    source, oracle = PARTS / "source" / "ckpt", np.load(PARTS / "oracle.npz")
    config = {"learning_rate": 0.05, "momentum": 0.9, "nesterov": False, "decay": 0.0, **NO_LIMITS}
    hint = {"class_name": "SGD", "config": config}
    report = migrate.migrate_checkpoint(source, tmp_path / "slots", optimizer_config=hint)
    assert report.fidelity == "exact"
    assert migrate.read(source, optimizer_config=hint).variables[0].name == "model.layer_with_weights-0.embeddings"
    assert next_steps.of_slots(tmp_path / "slots", oracle, 5) < next_steps.NEAR
