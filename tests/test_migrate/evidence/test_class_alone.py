"""The class alone as a hint: it adds, and what it leaves open is read, asked for, or shown as assumed."""

from __future__ import annotations

from typing import Any

import pytest

import migrate
from migrate.algorithms import addons
from migrate.errors import ContradictionError, MissingHintError
from optim.errors import HyperparameterError, UnsupportedError
from tests.places import CORPUS, WILD

LOOKAHEAD = CORPUS / "extra-tfa19-lookahead-adam-ckpt" / "source" / "ckpt-1"


@pytest.mark.parametrize("how", ["overrides", "optimizer_config"])
def test_nesterov_is_open_where_the_momentum_is_a_variable(how: str) -> None:
    """It was called the only value there is, as a momentum that no config says was taken for none."""
    source = CORPUS / "tf115-sgd-nesterov-checkpoint-embed" / "source" / "ckpt-1"
    config: dict[str, Any] = {"clipnorm": None}
    hint = {"class_name": "SGD", **config} if how == "overrides" else {"class_name": "SGD", "config": config}
    state = migrate.read(source, **{how: hint})  # type: ignore[arg-type]
    assert state.fidelity == "approximate"
    assert any(reason.startswith("nesterov = False") for reason in state.reasons)


@pytest.mark.parametrize(
    ("case", "hints", "asks"),
    [
        ("extra-tf29-exp-sgd-alone", {}, "--set momentum=VALUE"),
        ("extra-tf115-contrib-lars-saver", {"class_name": "LARSOptimizer"}, "--set learning_rate=VALUE"),
        ("extra-tfa19-lookahead-adam-ckpt", {"class_name": "Adam"}, """--set 'lookahead={"sync_period": N,"""),
        ("extra-tfa19-lookahead-adam-ckpt", {"class_name": "Lookahead"}, "--set class_name=CLASS"),
        ("extra-tf24-adam-lss-mixed-ckpt", {"class_name": "LossScaleOptimizer"}, "--set class_name=CLASS"),
    ],
)
def test_what_it_leaves_open_is_asked_for(case: str, hints: dict[str, Any], asks: str) -> None:
    source = next((CORPUS / case / "source").glob("*.index")).with_suffix("")
    with pytest.raises(MissingHintError) as raised:
        migrate.read(source, overrides={"class_name": "SGD", **hints})
    assert asks in str(raised.value)


@pytest.mark.parametrize("class_name", ["AdamW", "Addons>AdamW"])
def test_a_class_of_addons_reads_its_decay(class_name: str) -> None:
    source = next((WILD / "tf29-g-adamw-ckpt" / "source").rglob("*.index")).with_suffix("")
    state = migrate.read(source, overrides={"class_name": class_name})
    whole = migrate.read(source, optimizer_config={"class_name": "AdamW", "config": {"weight_decay": 0.001}})
    assert state.hyperparameters["weight_decay"] == pytest.approx(whole.hyperparameters["weight_decay"], rel=1e-6)
    with pytest.raises(ContradictionError, match="AdamW, SGDW have it, so the class is wrong"):
        migrate.read(source, overrides={"class_name": "Adam"})


@pytest.mark.parametrize(
    "lookahead",
    [5, True, [1], "x", {"sync_period": 6}, {"sync_period": 0, "slow_step_size": 0.5}, {"sync_period": 6, "x": 1}]
    + [{"sync_period": value, "slow_step_size": 0.5} for value in ("6", 1.5, float("nan"), -1, None)]
    + [{"sync_period": 6, "slow_step_size": value} for value in (2, -1, None, True)],
    ids=repr,
)
def test_settings_of_a_wrapper_that_are_none_are_no_damage(lookahead: Any) -> None:
    with pytest.raises(HyperparameterError, match="of Lookahead"):
        migrate.read(LOOKAHEAD, overrides={"class_name": "Adam", "lookahead": lookahead})


@pytest.mark.parametrize("iterations", [-1, 1.5, "x", None, True, 10**20, float("nan"), [4]], ids=repr)
def test_what_is_no_number_of_steps_is_refused(iterations: Any) -> None:
    source = CORPUS / "tf24-adam-convbn" / "source" / "model.h5"
    with pytest.raises(HyperparameterError, match="iterations must be a whole number of steps"):
        migrate.read(source, overrides={"iterations": iterations})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("clip_order", "x"), ("lazy_rows", ["("]), ("learning_rate", None)),
        *(("untrained", 5), ("untrained", ["nobody"]), ("untrained", "dense/kernel")),
    ],
    ids=repr,
)
def test_what_no_optimizer_takes_is_refused(option: str, value: Any) -> None:
    """These were carried, and called exact."""
    source = CORPUS / "tf24-adam-convbn" / "source" / "model.h5"
    with pytest.raises((HyperparameterError, UnsupportedError), match=f"{option}( must be|: )"):
        migrate.migrate_checkpoint(source, "unwritten", overrides={option: value}, dry_run=True)


def test_a_schedule_that_leaves_arguments_out_is_not_exact() -> None:
    source = CORPUS / "tf24-adam-convbn" / "source" / "model.h5"
    config = {"initial_learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.5}
    for arguments in (config, {**config, "staircase": True}):
        state = migrate.read(
            source, overrides={"learning_rate": {"class_name": "ExponentialDecay", "config": arguments}}
        )
        assert (state.fidelity == "exact") == ("staircase" in arguments)


def test_none_confirms_a_default_that_is_none() -> None:
    source = next((CORPUS / "extra-tfa19-lamb-decay-ckpt" / "source").glob("*.index")).with_suffix("")
    overrides = {"class_name": "LAMB", "exclude_from_layer_adaptation": None}
    assert not [r for r in migrate.read(source, overrides=overrides).reasons if "adaptation" in r]


def test_contents_need_no_hint() -> None:
    contents = migrate.contents(CORPUS / "tf24-sgd-momentum-ckpt-convbn" / "source" / "ckpt-1", stats=True)
    assert contents is not None
    assert contents.classes[0] == "SGD"
    assert (contents.scalars["iter"], contents.unmapped) == (4, {"save_counter": ()})
    assert contents.scalars["momentum"] == pytest.approx(0.9)
    assert {row.variable for row in contents.slots} < {row.variable for row in contents.variables}
    assert {row.slot for row in contents.slots} == {"momentum"}
    assert all(row.stats is not None and row.stats.finite for row in contents.slots)


@pytest.mark.parametrize(
    ("class_name", "lacks"),
    [
        ("LAMB", "weight_decay"),
        ("AdamW", "weight_decay_per_step"),
        ("Yogi", "l1_regularization_strength"),
        ("RectifiedAdam", "weight_decay, sma_threshold"),
        ("AdaBelief", "weight_decay, sma_threshold"),
    ],
)
def test_a_class_whose_variables_are_not_among_the_optimizers_is_denied(class_name: str, lacks: str) -> None:
    """Slots of Adam are called as theirs are; OptimizerV2 keeps the hyperparameters of each class beside them."""
    source = CORPUS / "extra-tf24-adam-twins-ckpt" / "source" / "ckpt-1"
    with pytest.raises(ContradictionError, match=f"keeps beta_1, beta_2, decay, learning_rate .* no {lacks}"):
        migrate.read(source, overrides={"class_name": class_name, "epsilon": 1e-7})


def test_a_value_that_no_variable_holds_can_be_set_for_such_a_class() -> None:
    """A weight decay that was a function of the program's own is no variable."""
    source = CORPUS / "extra-tf24-adam-twins-ckpt" / "source" / "ckpt-1"
    overrides = {"class_name": "AdamW", "epsilon": 1e-7, "weight_decay_per_step": 0.01}
    hyperparameters = migrate.read(source, overrides=overrides).hyperparameters
    assert hyperparameters["weight_decay"] == pytest.approx(0.01 / hyperparameters["learning_rate"])


def test_lambs_weight_decay_has_two_names() -> None:
    """`weight_decay_rate` up to Addons 0.16, as the variable is called that is kept."""
    assert addons.setting("weight_decay_rate", {"weight_decay": 0.0}) == "weight_decay"
    assert addons.setting("weight_decay_rate", {addons.PER_RATE: 0.0, "weight_decay": 0.0}) == addons.PER_RATE
