"""What is said with `--set` or `--variables` is taken, confirms what is so, or is refused: nothing is passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import migrate
from migrate.errors import ContradictionError
from migrate.operations import overriding
from migrate.operations.soundness import checked
from optim.errors import DtoptError, HyperparameterError
from tests import adversary
from tests.test_migrate.confirm import confirmed

FIXTURES = Path(__file__).parents[1] / "fixtures"
CASES = (
    pytest.param("corpus/extra-k122-adam-clip-saver", marks=pytest.mark.breadth),
    "corpus/extra-k224-adadelta-decay-mlp-npz",
    pytest.param("corpus/keras38-adam-convbn", marks=pytest.mark.breadth),
    "corpus/tf215-new-sgd-gclip-weights-mlp",
    "corpus/tf24-sgd-clipboth-mlp",
    "wild/tf29-g-moving-average-adam-ckpt",
)
ADAM = FIXTURES / "corpus" / "keras38-adam-convbn" / "source" / "model.keras"
STATED = {*overriding.OF_THE_SOURCE, "name"}


def _said(source: str | Path, hints: dict[str, Any]) -> dict[str, Any] | None:
    """All that a state says of the next step, slots apart; None where it is refused or not exact."""
    try:
        state = checked(migrate.read(source, **hints))
    except DtoptError:
        return None
    exact = all(origin.certain for origin in state.origins)
    return {**state.hyperparameters, **state.scalars} if exact else None


@pytest.mark.parametrize("case", CASES)
def test_no_override_is_passed_over(case: str) -> None:
    found = adversary.case(FIXTURES / case)
    source, hints = found.folder / found.source, found.hints
    overrides = confirmed(source, **hints)
    before = _said(source, {**hints, "overrides": overrides})
    assert before is not None
    for name in sorted(overriding.known() - STATED | {"lr", "leraning_rate", "jit_compile"}):
        for value in (0.21875, 3, -1, True, "word", ["word"], {"a": 1}, float("nan")):
            after = _said(source, {**hints, "overrides": {**overrides, name: value}})
            assert after is None or after != before or after.get(name) == value, (name, value)


@pytest.mark.parametrize(
    "overrides",
    [
        {"weight_decay_exclude": ["bias"]},
        {"weight_decay_exclude": 5},
        {"ema_momentum": 0.5},
        {"decay": 0.5},
        {"clipnorm": -1},
        {"clipnorm": []},
        {"clipnorm": float("nan")},
        {"rho": 0.5},
        {"leraning_rate": None},
        {"leraning_rate": 0.5},
        {"jit_compile": True},
        {"learning_rate_in_linear": True},
        {"name": 5},
    ],
    ids=str,
)
def test_what_would_change_nothing_is_refused(overrides: dict[str, Any]) -> None:
    with pytest.raises(DtoptError) as refused:
        checked(migrate.read(ADAM, overrides=overrides))
    assert next(iter(overrides)) in str(refused.value)


@pytest.mark.parametrize("overrides", [{"rho": None}, {"momentum": 0.0}, {"use_ema": False}, {"decay": 0}], ids=str)
def test_what_is_not_so_may_be_said(overrides: dict[str, Any]) -> None:
    assert migrate.read(ADAM, overrides=overrides).hyperparameters == migrate.read(ADAM).hyperparameters


def test_the_older_name_of_the_learning_rate_is_taken() -> None:
    assert migrate.read(ADAM, overrides={"lr": 0.5}).hyperparameters["learning_rate"] == 0.5
    with pytest.raises(ContradictionError, match=r"lr=0\.5 and learning_rate=0\.25"):
        migrate.read(ADAM, overrides={"lr": 0.5, "learning_rate": 0.25})


def test_the_decay_of_averages_is_taken_and_not_the_sources() -> None:
    found = adversary.case(FIXTURES / "wild" / "tf29-g-moving-average-adam-ckpt")
    overrides = {**confirmed(found.folder / found.source, **found.hints), "average_decay": 0.5}
    assert migrate.read(found.folder / found.source, **found.hints, overrides=overrides).hyperparameters[
        "ema_momentum"
    ] == pytest.approx(0.5)


def test_a_variable_with_slots_was_trained() -> None:
    name = next(iter(migrate.read(ADAM).slots["m"]))
    with pytest.raises(ContradictionError, match="untrained names"):
        migrate.read(ADAM, overrides={"untrained": [name]})


def test_a_switch_is_true_or_false() -> None:
    source = FIXTURES / "corpus" / "keras224-adadelta-mlp" / "source" / "model.h5"
    for value in ("word", 5, float("nan")):
        with pytest.raises(DtoptError, match="neither true nor false"):
            migrate.read(source, overrides={"new_delta_in_step": value})
    with pytest.raises(HyperparameterError, match="would change nothing"):
        migrate.read(source, overrides={"learning_rate_in_linear": True})


@pytest.mark.parametrize("case", ["keras38-adam-convbn", "extra-k224py27-sgd-protocol0-pkl", "keras224-adam-saver-mlp"])
@pytest.mark.parametrize(
    "wrong",
    [
        *({"dtype": "float64"}, {"dtype": "word"}, {"dtype": 5}, {"trainable": False}, {"trainable": "yes"}),
        *({"name": 5}, {"name": ""}, {"shape": "57"}, {"shape": [5.5]}, {"shape": [-1]}),
        *({"shape": [True]}, {"shape": ["5"]}, {"shape": None}),
    ],
    ids=str,
)
def test_nothing_of_a_variable_is_passed_over(case: str, wrong: dict[str, Any]) -> None:
    found = adversary.case(FIXTURES / "corpus" / case)
    source, hints = found.folder / found.source, found.hints
    state = migrate.read(source, **hints)
    rows = [{"name": v.name, "shape": list(v.shape), "dtype": v.dtype} for v in state.variables if v.trainable]
    assert _said(source, {**hints, "variables": rows}) == _said(source, hints)
    more = [{**row, "shape": tf.TensorShape(row["shape"]), "dtype": tf.as_dtype(row["dtype"])} for row in rows]
    more[0]["sparse"] = False  # as whoever made the list may have noted
    assert _said(source, {**hints, "variables": more}) == _said(source, hints)
    with pytest.raises(DtoptError):
        checked(migrate.read(source, **{**hints, "variables": [{**rows[0], **wrong}, *rows[1:]]}))


@pytest.mark.parametrize(
    "told",
    [{"untrained": ["dense_1/kernel"]}, {"slot_order": "name"}, {"zero_slots": "source"}, {"clipnorm": float("nan")}],
    ids=str,
)
def test_a_config_has_no_word_that_is_passed_over(told: dict[str, Any]) -> None:
    found = adversary.case(FIXTURES / "corpus" / "keras224-adam-saver-mlp")
    source, config = found.folder / found.source, found.hints["optimizer_config"]
    assert _said(source, {"optimizer_config": config}) is not None
    assert _said(source, {"optimizer_config": {**config, "config": {**config["config"], **told}}}) is None
