"""Checkpoints as training programs leave them: read as they are, and the source's own next steps taken by `optim`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
import optim
from migrate.errors import AmbiguousError
from optim.errors import CheckpointError
from tests.helpers import next_steps
from tests.places import WILD
from tests.test_migrate.confirm import confirmed

CASES = {
    "tf29-d-manager-plain": "tf_ckpts",  # with a saved data iterator
    "tf115-f-keras-with-tftrain-adam-save-weights": "weights",  # tf.train.AdamOptimizer inside Keras
    "tf115-f-moving-average-optimizer": "model.ckpt-4",  # averages under the names of the variables
    "tf29-h-mirrored-sm": "saved_model",  # variables without names
    "tf29-i-backup-and-restore": "backup",
    "tf215-j-untrained-ckpt": "ckpt-1",  # saved before its first step: no slots tell what is trained
    "tf29-j-untrained-table-ckpt": "ckpt-1",  # the same, with a table, of whose rows the first steps leave some alone
    "tf215-d-loaded-sgdm-weights": "weights",  # slots called m/..., after load_model
    "tf29-e-own-scale-adamax-h5": "model.h5",  # a scalar and a row of a layer of its own
    "tf215-d-own-in-top-keras": "model.keras",  # a model's own variable, which it trains last
    "tf215-d-own-in-model-keras": "model.keras",  # as much in a model inside of it
}
OWN = [("block/norm/0", [4]), ("block/norm/1", [4]), ("block/0", [4]), ("out/0", [4, 4]), ("out/1", [4])]
TOLD = {
    "tf215-d-own-in-model-keras": {"variables": [{"name": name, "shape": shape} for name, shape in OWN]},
    "tf29-j-untrained-table-ckpt": {"generation": "optimizer_v2"},
}
"""What only the program knows."""
UNASKED = (
    "tf215-d-loaded-sgdm-weights",
    "tf29-e-own-scale-adamax-h5",
    *(c for c in CASES if "-own-in-" in c or "-untrained-" in c),
)
"""Of which nothing is left to confirm."""


def _hints(document: dict[str, Any]) -> dict[str, Any]:
    config = document.get("config") or (document["optimizer_config"] if document.get("needs_config") else None)
    return {} if config is None else {"optimizer_config": config}


def _case(name: str) -> tuple[dict[str, Any], Any]:
    folder = WILD / name
    return json.loads((folder / "case.json").read_text()), np.load(folder / "oracle.npz")


@pytest.mark.parametrize("name", CASES)
def test_the_sources_own_next_steps_are_taken(name: str, tmp_path: Path) -> None:
    document, oracle = _case(name)
    target = tmp_path / "slots"
    source, hints = WILD / name / "source" / CASES[name], _hints(document) | TOLD.get(name, {})
    overrides = {} if name in UNASKED else confirmed(source, **hints)
    report = migrate.migrate_checkpoint(source, target, overrides=overrides, **hints)
    assert report.fidelity == "exact"
    assert next_steps.of_slots(target, oracle, document["n"]) < next_steps.NEAR


def test_whether_a_layer_or_a_model_owns_a_variable_is_not_assumed() -> None:
    """Layers of tf.keras train their own variables first, models theirs last, and the file does not tell them apart."""
    source = WILD / "tf215-d-own-in-model-keras" / "source" / "model.keras"
    with pytest.raises(AmbiguousError, match=r"block/0, block/norm/0, .*; or block/norm/0, block/norm/1, block/0, "):
        migrate.read(source)


def test_what_is_no_array_stays_in_the_source_and_is_named(tmp_path: Path) -> None:
    document, _ = _case("tf29-d-manager-plain")
    source = WILD / "tf29-d-manager-plain" / "source" / "tf_ckpts"
    report = migrate.migrate_checkpoint(source, tmp_path / "slots", **_hints(document))
    assert any("(variant)" in warning for warning in report.warnings)


def test_an_estimators_optimizer_counts_in_global_step(tmp_path: Path) -> None:
    document, _ = _case("tf115-f-model-to-estimator")
    source = WILD / "tf115-f-model-to-estimator" / "source" / "model.ckpt-4"
    report = migrate.migrate_checkpoint(source, tmp_path / "slots", **_hints(document))
    assert (report.iterations, report.slots) == (document["k"], 12)  # m and v of six variables


def test_averages_that_were_swapped_for_saving_are_put_back(tmp_path: Path) -> None:
    import shutil

    folder = WILD / "tf115-f-moving-average-optimizer" / "source"
    document, oracle = _case("tf115-f-moving-average-optimizer")
    state = migrate.read(folder / "model.ckpt-4", **_hints(document))
    live = {v.name: np.asarray(v.array.load()) for v in state.variables if v.array is not None}
    for i, name in enumerate(document["trainable"]):
        assert np.array_equal(live[name.removesuffix(":0")], oracle[f"at_save/var/{i}"])
    for part in os.listdir(folder):  # without its graph nothing shows it, and nothing may be called certain
        if not part.endswith(".meta"):
            shutil.copy(folder / part, tmp_path)
    unknown = migrate.read(tmp_path / "model.ckpt-4", **_hints(document))
    assert "ExponentialMovingAverage" in " ".join((*unknown.warnings, *unknown.reasons))


def test_variables_without_names_are_told_by_their_layers(tmp_path: Path) -> None:
    source = WILD / "tf29-h-mirrored-sm" / "source" / "saved_model"
    assert migrate.migrate_checkpoint(source, tmp_path / "model.keras", to="keras").fidelity == "exact"


def test_a_schedule_of_ones_own_is_asked_for_when_loading(tmp_path: Path) -> None:
    import tensorflow as tf

    name = "tf29-d-manager-schedule-subclass"
    document, oracle = _case(name)
    source, target = WILD / name / "source" / "training_checkpoints", tmp_path / "slots"
    report = migrate.migrate_checkpoint(source, target, **_hints(document))
    assert any("learning_rate=WarmUp(...)" in warning for warning in report.warnings)
    stored = {v.name: np.asarray(v.array.load()) for v in migrate.read(target).variables if v.array is not None}
    starts = next_steps.starts_of(oracle)
    names, live = next_steps.owners(stored, starts), [tf.Variable(start) for start in starts]
    onto = dict(zip(names, live, strict=True))
    with pytest.raises(CheckpointError, match=r"learning_rate=WarmUp\(\.\.\.\)"):
        optim.load_checkpoint(target, onto, restore_variables=False)
    width, warmup = (
        document["optimizer_config"]["config"]["learning_rate"]["config"][k] for k in ("d", "warmup_steps")
    )

    class WarmUp(optim.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> tf.Tensor:
            step = tf.cast(step, tf.float32) + 1.0
            rate = tf.math.minimum(tf.math.rsqrt(step), step * warmup**-1.5)
            return tf.math.rsqrt(tf.cast(width, tf.float32)) * rate

    optimizer = optim.load_checkpoint(target, onto, restore_variables=False, learning_rate=WarmUp())
    assert next_steps.error(next_steps.applying(optimizer, live), live, oracle, document["n"]) < next_steps.NEAR
