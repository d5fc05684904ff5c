"""BERT's AdamWeightDecayOptimizer and the graph of its create_optimizer: its own next steps, or the reason why not."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate import algorithms
from migrate.algorithms import addons, tf_train
from migrate.errors import ContradictionError
from migrate.readers import tf1_saver
from tests.helpers import next_steps
from tests.places import CORPUS, WILD
from tests.test_migrate.confirm import confirmed

BERT = "tf115-f-bert-adamweightdecay"


def _bert(**config: Any) -> tuple[str, dict[str, Any]]:
    """The Saver's checkpoint of BERT's own optimizer, and its config with these changes."""
    document = json.loads((WILD / BERT / "case.json").read_text())["config"]
    settings = {**document["config"], **config}
    settings = {key: value for key, value in settings.items() if value is not None}
    return str(WILD / BERT / "source" / "model.ckpt-4"), {"class_name": document["class_name"], "config": settings}


def test_berts_adam_without_bias_correction_goes_on(tmp_path: Path) -> None:

    falling = {"initial_learning_rate": 0.005, "decay_steps": 100, "end_learning_rate": 0.0, "power": 1.0}
    schedule = {"class_name": "PolynomialDecay", "config": {**falling, "cycle": False}}
    source, config = _bert(learning_rate=schedule)
    report = migrate.migrate_checkpoint(
        source, tmp_path / "slots", optimizer_config=config, overrides={"clipnorm": None, "iterations": 5}
    )
    assert migrate.read(source, optimizer_config=config, overrides={"clipnorm": None}).fidelity == "approximate"
    assert report.fidelity == "exact", report.reasons
    known = {"clipnorm": None, "iterations": 5}
    compared = migrate.verify(source, tmp_path / "slots", optimizer_config=config, overrides=known)
    assert compared.parity is not None
    assert compared.parity <= 1
    oracle, document = np.load(WILD / BERT / "oracle.npz"), json.loads((WILD / BERT / "case.json").read_text())
    assert next_steps.of_slots(tmp_path / "slots", oracle, document["n"], document["trainable"]) < next_steps.NEAR


CREATED = CORPUS / "extra-tf115-bert-warm10-saver"


@pytest.mark.parametrize(("warm_up", "schedule"), [(3, "PolynomialDecay"), (10, "Formula")])
@pytest.mark.quick(1)
def test_the_graph_of_berts_create_optimizer_says_all_but_the_order_of_its_counter(warm_up: int, schedule: str) -> None:
    source = CORPUS / f"extra-tf115-bert-warm{warm_up}-saver" / "source" / "model.ckpt"
    state = migrate.read(source)
    assert confirmed(source) == {"iterations": 4}
    assert (state.hyperparameters["global_clipnorm"], state.hyperparameters["repeated_rows"]) == (1.0, ["clip"])
    assert state.hyperparameters["learning_rate"]["class_name"] == schedule  # after four steps only one still rises
    constants = {key: state.hyperparameters[key] for key in ("beta_1", "beta_2", "epsilon", "weight_decay")}
    assert constants == {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-6, "weight_decay": 0.01}
    excluded = state.hyperparameters["weight_decay_exclude"]
    left_out = [v.name for v in state.variables if any(re.search(pattern, v.name) for pattern in excluded)]
    assert sorted(left_out) == ["bert/layer_0/LayerNorm/gamma", "bert/layer_0/dense/bias"]


def test_bert_goes_on_in_its_warm_up(tmp_path: Path) -> None:
    """In this run every step read its counter after it was raised; in that with the shorter warm-up some did."""

    source, oracle = CREATED / "source" / "model.ckpt", np.load(CREATED / "oracle.npz")
    known = {"iterations": 5, "global_clipnorm": 1.0}
    report = migrate.migrate_checkpoint(source, tmp_path / "slots", overrides=known)
    assert report.fidelity == "exact", report.reasons
    names = [v["name"] for v in json.loads((CREATED / "case.json").read_text())["trainable"]]
    assert next_steps.of_slots(tmp_path / "slots", oracle, 6, names) < next_steps.NEAR


@pytest.mark.parametrize("hint", [{"epsilon": 1e-7}, {"exclude_from_weight_decay": ["LayerNorm"]}, {"beta_2": 0.99}])
@pytest.mark.quick(1)
def test_a_hint_that_berts_graph_denies_is_refused(hint: dict[str, Any]) -> None:
    source = CREATED / "source" / "model.ckpt"
    with pytest.raises(ContradictionError, match="the source's graph"):
        migrate.read(source, optimizer_config={"class_name": "AdamWeightDecayOptimizer", "config": hint})


@pytest.mark.parametrize("left_out", ["weight_decay_rate", "epsilon", "exclude_from_weight_decay", "beta_2"])
def test_what_berts_config_does_not_say_is_asked_for(left_out: str, tmp_path: Path) -> None:
    source, config = _bert(**{left_out: None})
    source = _without_graph(source, tmp_path)
    known = {"clipnorm": None, "learning_rate": 0.005}
    assert migrate.read(source, optimizer_config=_bert()[1], overrides=known).fidelity == "exact"
    assert migrate.read(source, optimizer_config=config, overrides=known).fidelity == "approximate"
    unsure = migrate.read(source, optimizer_config=_bert()[1], overrides={"clipnorm": None})
    assert "warms it up" in " ".join(unsure.reasons)


def _without_graph(source: str, folder: Path) -> str:
    for file in Path(source).parent.glob(f"{Path(source).name}.*"):
        if file.suffix != ".meta":
            shutil.copy(file, folder)
    return str(folder / Path(source).name)


def test_berts_slots_are_no_other_adams(tmp_path: Path) -> None:
    source, config = _bert()
    with pytest.raises(ContradictionError, match=r"graph specifies AdamWeightDecayOptimizer, and .* AdamOptimizer\."):
        migrate.read(source, optimizer_config={**config, "class_name": "AdamOptimizer"})
    with pytest.raises(ContradictionError, match="BERT's AdamWeightDecay"):
        migrate.read(_without_graph(source, tmp_path), optimizer_config={**config, "class_name": "AdamOptimizer"})
    other = WILD / "tf115-f-moving-average-optimizer" / "source" / "model.ckpt-4"
    with pytest.raises(ContradictionError, match="the source's graph specifies"):
        migrate.read(other, optimizer_config=config)


def test_what_bert_gathers_gradients_in_is_no_other_optimizer() -> None:
    """NVIDIA's `optimization.py` keeps `accum` beside each variable."""
    stored = tf1_saver.read(_bert()[0])
    gathering = replace(stored, slots={**stored.slots, "accum": stored.slots["adam_m"]})
    names = tf_train.slot_names(gathering, algorithms.find("Adam"), {addons.CORRECTED: False})
    assert names == {"adam_m": "m", "adam_v": "v", "accum": None}
