"""What a source answers of its variables where its file does not store it, and which live variable is meant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.claims import TRAINED, UNINTERPRETED, Origin
from migrate.live import step_answers
from migrate.live.step_answers import Row
from migrate.models import constraints
from migrate.rules import step_factors as factors
from tests.test_migrate.live import live_models
from tests.test_migrate.live.live_models import BIAS, KERNEL, OTHER, TABLE

Made = Callable[[bool], Any]


@pytest.fixture(name="sequential")
def sequential_model() -> Made:
    """A model whose layers have no names, the first of them frozen or not."""
    import keras

    def make(is_frozen: bool) -> Any:
        model = keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(n) for n in (4, 4, 2))])
        model.layers[0].trainable = not is_frozen
        return model

    return make


def _saved(model: Any, optimizer: Any, path: Path) -> str:
    model.compile(optimizer, "mse")
    model.fit(np.ones((2, 4)), np.zeros((2, 2)), verbose=0)
    if path.name.endswith(".weights.h5"):
        model.save_weights(path)
    else:
        model.save(path)
    return str(path)


def test_weights_alone_take_frozen_layers_from_the_live_model(sequential: Made, tmp_path: Path) -> None:
    """`.weights.h5` does not store flags, and two layers of one shape fit the slots."""
    import keras

    source = _saved(sequential(True), keras.optimizers.Adam(0.01), tmp_path / "m.weights.h5")
    config = {"class_name": "Adam", "config": keras.optimizers.Adam(0.01).get_config()}
    live, optimizer = sequential(True), keras.optimizers.Adam(0.01)
    report = migrate.restore(source, optimizer, live.weights, optimizer_config=config)
    assert ["does not store which variables were trained" in reason for reason in report.reasons] == [True]
    rows = [{"name": name, "shape": v.shape} for v in live.trainable_variables for name in (report.onto[v.path][0],)]
    report = migrate.restore(
        source, keras.optimizers.Adam(0.01), live.weights, optimizer_config=config, source_variables=rows
    )
    assert report.fidelity == "exact", report.reasons


def test_variables_without_slots_and_names_are_compared_by_their_shapes(sequential: Made, tmp_path: Path) -> None:
    """Plain SGD has no slots, so that no live variable has to be one of the source's."""
    import keras

    source = _saved(sequential(True), keras.optimizers.SGD(0.01), tmp_path / "m.keras")
    for is_frozen in (True, False):
        variables = sequential(is_frozen).trainable_variables
        report = migrate.restore(source, keras.optimizers.SGD(0.01), variables)
        assert (report.fidelity == "exact") == is_frozen, report.reasons


@pytest.mark.parametrize(
    "options",
    [
        {"lazy_rows": ["m/d/kernel$"]},
        {"learning_rate_multipliers": {"m/d/kernel$": 0.5}},
        {"weight_decay": 0.1, "weight_decay_exclude": ["m/d/kernel$"]},
        {"cls": "Lamb", "exclude_from_layer_adaptation": ["m/d/kernel$"]},
        {"cls": "Muon", "exclude_layers": ["m/d/kernel$"]},
        {"cls": "Muon", "table": True},
    ],
)
def test_patterns_are_compared_by_what_they_choose(options: dict[str, Any], tmp_path: Path) -> None:
    """The same patterns choose nothing where the live variable has another name."""
    import tensorflow as tf

    source = live_models.source(tmp_path, options)
    for is_renamed in (False, True):
        optimizer, variables = live_models.live(factors.OPTIM, options)
        if is_renamed:
            name = TABLE if TABLE in variables else KERNEL
            variables[name] = tf.Variable(variables[name], name="m/x/kernel")
        report = migrate.restore(source, optimizer, variables)
        assert (report.fidelity == "exact") != is_renamed, report.reasons


def test_a_variable_that_is_not_given_is_not_trained(tmp_path: Path) -> None:
    """Plain SGD has no slots, so that none of the source's variables has to be given."""
    source = live_models.source(tmp_path, {"momentum": 0.0})
    optimizer, variables = live_models.live(factors.OPTIM, {"momentum": 0.0})
    assert migrate.restore(source, optimizer, variables).fidelity == "exact"
    del variables[OTHER]
    optimizer, _ = live_models.live(factors.OPTIM, {"momentum": 0.0})
    report = migrate.restore(source, optimizer, variables)
    assert report.reasons == (f"{OTHER}: trained in the source, but not among the live variables",)


def test_a_constraint_that_a_source_cannot_store_is_a_warning(tmp_path: Path) -> None:
    source = live_models.source(tmp_path, {})
    tied = {"constraint": {"class_name": "NonNeg", "config": {}}}
    report = migrate.restore(source, *live_models.live(factors.OPTIM, tied))
    assert report.fidelity == "exact"
    assert f"{KERNEL}: the source does not store constraints; those of the live model apply" in report.warnings


def test_an_open_question_of_what_is_trained_is_asked_once(tmp_path: Path) -> None:
    """A frozen live layer does not contradict a source that leaves open whether it trains the layer."""
    state = migrate.read(live_models.source(tmp_path, {}))
    rows = [Row(v, v.name, v) for v in state.variables]
    asks = {factors.TRAINED: lambda row: row.name == OTHER, factors.DECAYED: lambda row: True}
    message = "trained in the source, and requires_grad is False in the live model"
    differences = list(step_answers.differences(state, factors.TORCH, rows, asks, False, "requires_grad"))
    assert differences == [f"{KERNEL}, {BIAS}: {message}"]
    late = Origin(TRAINED, [KERNEL, BIAS], UNINTERPRETED, doubt="they have no slots")
    state = replace(state, origins=(*state.origins, late))
    assert list(step_answers.differences(state, factors.TORCH, rows, asks, False, "requires_grad")) == []


def test_constraints_are_the_same_by_class_and_config() -> None:
    import keras
    import tf_keras

    stored = {"class_name": "MaxNorm", "config": {"max_value": 2, "axis": 0}}
    for library in (keras, tf_keras):
        variable = type("V", (), {"constraint": library.constraints.MaxNorm(2.0, 0)})()
        assert constraints.of_variable(variable) == constraints.of_config(stored) == "MaxNorm(axis=0, max_value=2)"
        variable.constraint = library.constraints.MaxNorm(3.0, 0)
        assert constraints.of_variable(variable) != constraints.of_config(stored)
    assert constraints.of_config("non_neg") == constraints.of_config({"class_name": "NonNeg", "config": {}})
    custom = type("V", (), {"constraint": staticmethod(lambda w: w)})()
    assert "custom" in str(constraints.of_variable(custom))
