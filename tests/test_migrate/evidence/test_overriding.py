"""What is said with `--set` or `--variables` is taken, confirms what is so, or is refused: nothing is passed over."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import migrate
from migrate.errors import ContradictionError
from migrate.evidence.user_input import settings
from migrate.evidence.value_checks import checked
from optim.errors import DtoptError, HyperparameterError, UnsupportedError
from tests import adversary
from tests.alterations.hdf5 import training_config
from tests.places import CASE_FOLDER, CORPUS, WILD
from tests.test_migrate.confirm import confirmed

CASES = (
    pytest.param("corpus/extra-k122-adam-clip-saver", marks=pytest.mark.breadth),
    "corpus/extra-k224-adadelta-decay-mlp-npz",
    pytest.param("corpus/keras38-adam-convbn", marks=pytest.mark.breadth),
    "corpus/tf215-new-sgd-gclip-weights-mlp",
    pytest.param("corpus/tf24-sgd-clipboth-mlp", marks=pytest.mark.breadth),
    "wild/tf29-g-moving-average-adam-ckpt",
)
ADAM = CORPUS / "keras38-adam-convbn" / "source" / "model.keras"
STATED = {*settings.OF_THE_SOURCE, "name"}


def _said(source: str | Path, hints: dict[str, Any]) -> dict[str, Any] | None:
    """All that a state says of the next step, slots apart; None where it is refused or not exact."""
    try:
        state = checked(migrate.read(source, **hints))
    except DtoptError:
        return None
    exact = all(origin.certain for origin in state.origins)
    return {**state.hyperparameters, **state.scalars} if exact else None


@pytest.mark.parametrize("case", CASES)
@pytest.mark.quick(1)
def test_no_override_is_passed_over(case: str) -> None:
    checkpoint = adversary.case(CASE_FOLDER / case)
    source, hints = checkpoint.folder / checkpoint.source, checkpoint.hints
    overrides = confirmed(source, **hints)
    before = _said(source, {**hints, "overrides": overrides})
    assert before is not None
    for name in sorted(settings.known() - STATED | {"lr", "leraning_rate", "jit_compile"}):
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


@pytest.mark.parametrize(
    ("case", "key"),
    [
        ("extra-k224py27-adam-amsgrad-mlp-pkl", "beta_1"),
        ("tf115-rmsprop-mlp", "rho"),
        ("extra-k224-sgd-clipboth-frozen-h5", "clip_order"),
        ("extra-tf211-legacy-ftrl-mlp-ckpt", "learning_rate_in_linear"),
        ("tf115-rmsprop-mlp", "epsilon_inside"),
        ("tf24-adam-convbn", "float32_powers"),
    ],
)
def test_what_always_has_a_value_is_not_none(case: str, key: str) -> None:
    """It was the default of the class, and exact, whatever the source says."""
    checkpoint = adversary.case(CORPUS / case)
    with pytest.raises(HyperparameterError, match=f"--set {key}=none needs a value"):
        migrate.read(checkpoint.folder / checkpoint.source, **checkpoint.hints, overrides={key: None})


@pytest.mark.parametrize("key", ["weight_decay", "global_clipnorm"])
@pytest.mark.parametrize("value", [{}, [], ""])
def test_an_empty_object_switches_nothing_off(key: str, value: Any) -> None:
    with pytest.raises(DtoptError, match=f"--set .*: {key} must be a number"):
        migrate.read(ADAM, overrides={key: value})


@pytest.mark.parametrize(("key", "value"), [("learning_rate", "abc"), ("learning_rate", -1), ("beta_1", True)])
def test_a_value_that_no_optimizer_takes_is_an_error_of_the_user(key: str, value: Any) -> None:
    """The error blamed the source, and ended with the code of a broken one."""
    with pytest.raises(HyperparameterError, match=f"--set .*: {key} must be"):
        migrate.read(ADAM, overrides={key: value})


@pytest.mark.parametrize("value", [{}, "on", 0.5])
def test_a_choice_of_optim_is_true_or_false(value: Any) -> None:
    """An empty object stood for false, and was exact."""
    source = CORPUS / "extra-keras312-muon-text-keras" / "source" / "model.keras"
    with pytest.raises(UnsupportedError, match="aspect_scale must be true or false"):
        checked(migrate.read(source, overrides={"aspect_scale": value}))


def test_the_older_name_of_the_learning_rate_is_taken() -> None:
    assert migrate.read(ADAM, overrides={"lr": 0.5}).hyperparameters["learning_rate"] == 0.5
    with pytest.raises(ContradictionError, match=r"lr=0\.5 and learning_rate=0\.25"):
        migrate.read(ADAM, overrides={"lr": 0.5, "learning_rate": 0.25})


def test_the_decay_of_averages_is_taken_and_not_the_sources() -> None:
    checkpoint = adversary.case(WILD / "tf29-g-moving-average-adam-ckpt")
    overrides = {**confirmed(checkpoint.folder / checkpoint.source, **checkpoint.hints), "average_decay": 0.5}
    assert migrate.read(checkpoint.folder / checkpoint.source, **checkpoint.hints, overrides=overrides).hyperparameters[
        "ema_momentum"
    ] == pytest.approx(0.5)


def test_a_variable_with_slots_was_trained() -> None:
    name = next(iter(migrate.read(ADAM).slots["m"]))
    with pytest.raises(ContradictionError, match="untrained names"):
        migrate.read(ADAM, overrides={"untrained": [name]})


def test_a_switch_is_true_or_false() -> None:
    source = CORPUS / "keras224-adadelta-mlp" / "source" / "model.h5"
    for value in ("word", 5, float("nan")):
        with pytest.raises(DtoptError, match="neither true nor false"):
            migrate.read(source, overrides={"new_delta_in_step": value})
    with pytest.raises(HyperparameterError, match="has no effect"):
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
@pytest.mark.quick(3)
def test_nothing_of_a_variable_is_passed_over(case: str, wrong: dict[str, Any]) -> None:
    checkpoint = adversary.case(CORPUS / case)
    source, hints = checkpoint.folder / checkpoint.source, checkpoint.hints
    state = migrate.read(source, **hints)
    rows = [{"name": v.name, "shape": list(v.shape), "dtype": v.dtype} for v in state.variables if v.trainable]
    assert _said(source, {**hints, "variables": rows}) == _said(source, hints)
    more = [{**row, "shape": tf.TensorShape(row["shape"]), "dtype": tf.as_dtype(row["dtype"])} for row in rows]
    more[0]["sparse"] = False  # as whoever made the list may have noted
    assert _said(source, {**hints, "variables": more}) == _said(source, hints)
    with pytest.raises(DtoptError):
        checked(migrate.read(source, **{**hints, "variables": [{**rows[0], **wrong}, *rows[1:]]}))


@pytest.mark.parametrize(
    "options",
    [{"untrained": ["dense_1/kernel"]}, {"slot_order": "name"}, {"zero_slots": "source"}, {"clipnorm": float("nan")}],
    ids=str,
)
@pytest.mark.quick(2)
def test_a_config_has_no_word_that_is_passed_over(options: dict[str, Any]) -> None:
    checkpoint = adversary.case(CORPUS / "keras224-adam-saver-mlp")
    source, config = checkpoint.folder / checkpoint.source, checkpoint.hints["optimizer_config"]
    assert _said(source, {"optimizer_config": config}) is not None
    assert _said(source, {"optimizer_config": {**config, "config": {**config["config"], **options}}}) is None


HINTED = (
    "corpus/extra-k224-adadelta-decay-mlp-npz",
    pytest.param("corpus/keras224-adam-saver-mlp", marks=pytest.mark.breadth),
    "corpus/tf215-new-sgd-gclip-weights-mlp",
    pytest.param("corpus/tf29-exp-adam-clipnorm-nested", marks=pytest.mark.breadth),
    pytest.param("wild/tf29-g-adamw-ckpt", marks=pytest.mark.breadth),
    "wild/tf29-g-moving-average-adam-ckpt",
)
WRITTEN = {"ema_momentum", "ema_overwrite_frequency", "jit_compile", "is_legacy_optimizer", "loss_scale_factor"}
"""Members that releases write also where they do nothing."""


@pytest.mark.parametrize("case", HINTED)
@pytest.mark.quick(1)
def test_no_member_of_a_config_is_passed_over(case: str) -> None:
    checkpoint = adversary.case(CASE_FOLDER / case)
    source, optimizer_config = checkpoint.folder / checkpoint.source, checkpoint.hints["optimizer_config"]
    hints = {**checkpoint.hints, "overrides": confirmed(source, **checkpoint.hints)}
    before = _said(source, hints)
    assert before is not None
    warned = migrate.read(source, **hints).warnings
    names = {*settings.known(), *WRITTEN, "lr", "leraning_rate", "name"} - {"foreach", "fused", *settings.LIMITS}
    for name in sorted(names):
        for value in (0.21875, -1, "word", ["word"], {"a": 1}, float("nan"), 10**900):
            config = {**optimizer_config, "config": {**optimizer_config["config"], name: value}}
            after = _said(source, {**hints, "optimizer_config": config})
            written = name in {*WRITTEN, "name"} and value in (0.21875, -1, "word")
            assert after is None or after != before or after.get(name) == value or written, (name, value)
    for limit in settings.LIMITS:
        for value in (0.21875, -1, "word", float("nan")):
            limited_hints = {
                **hints,
                "optimizer_config": {**optimizer_config, "config": {**optimizer_config["config"], limit: value}},
            }
            after = _said(source, limited_hints)
            assert after is None or after != before or migrate.read(source, **limited_hints).warnings != warned, (
                limit,
                value,
            )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"leraning_rate": 0.5}, "has no leraning_rate; it has learning_rate, "),
        ({"leraning_rate": None}, "has no leraning_rate"),
        ({"weight_decay_exclude": ["bias"]}, "has no weight_decay_exclude"),
        ({"lazy": True}, "has no lazy; LazyAdam, LazyAdamOptimizer have it"),
        ({"nesterov": True}, "this looks like another class's config. Remove nesterov"),
        ({"ema_momentum": 0.5}, "has no ema_momentum"),
        ({"ema_momentum": 5}, "ema_momentum in --optimizer-config must be in"),
        ({"global_clipnorm": -1}, "global_clipnorm in --optimizer-config must be >= 0"),
        ({"jit_compile": 5}, "jit_compile = 5 in --optimizer-config has no effect"),
        ({"name": 5}, "name = 5"),
        ({"epsilon": 10**900}, "an integer of 2990 bits"),
        ({"lr": 10**900}, "an integer of 2990 bits"),
    ],
    ids=str,
)
@pytest.mark.quick(4)
def test_what_a_config_says_for_nothing_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    checkpoint = adversary.case(CORPUS / "keras224-adam-saver-mlp")
    config = checkpoint.hints["optimizer_config"]
    with pytest.raises(DtoptError) as refused:
        migrate.read(
            checkpoint.folder / checkpoint.source,
            optimizer_config={**config, "config": {**config["config"], **options}},
        )
    assert message in str(refused.value)


SGD = adversary.case(CORPUS / "tf215-new-sgd-gclip-weights-mlp")


def _read_sgd(config: dict[str, Any]) -> migrate.OptimizerState:
    return migrate.read(SGD.folder / SGD.source, **{**SGD.hints, "optimizer_config": config})


def test_the_config_of_a_wrapper_has_no_word_that_is_passed_over() -> None:
    inner = SGD.hints["optimizer_config"]
    scaled = {"inner_optimizer": inner, "initial_scale": 1024.0, "dynamic": True, "dynamic_growth_steps": 2000}
    _read_sgd({"class_name": "LossScaleOptimizer", "config": scaled})
    for more in ({"clipnorm": 1.0}, {"use_ema": True}, {"initial_scael": 8}, {"initial_scale": "word"}, {"name": 5}):
        with pytest.raises(HyperparameterError, match="has no effect"):
            _read_sgd({"class_name": "LossScaleOptimizer", "config": {**scaled, **more}})
    with pytest.raises(HyperparameterError, match="ignores it"):  # Keras before 3.12 took it
        _read_sgd({"class_name": "LossScaleOptimizer", "config": {**scaled, "clipnorm": 1.0}})
    with pytest.raises(HyperparameterError, match="'learning_rate' next to class_name and config"):
        _read_sgd({**inner, "learning_rate": 0.5})


def test_a_wrapper_that_the_source_denies_is_refused() -> None:
    source = CORPUS / "keras231-adam-amsgrad-mlp" / "source" / "model.h5"
    inner = {"class_name": "Adam", "config": {"learning_rate": 0.005}}
    document = {"class_name": "Lookahead", "config": {"optimizer": inner}}
    with pytest.raises(ContradictionError, match=r"in Lookahead, .* has no wrapper"):
        migrate.read(source, optimizer_config=document)


def test_a_class_of_somebodys_own_is_refused_in_a_config_too() -> None:
    with pytest.raises(UnsupportedError, match="not a class of Keras"):
        _read_sgd({**SGD.hints["optimizer_config"], "module": "mine.optimizers", "registered_name": "Mine>SGD"})


def test_the_generation_of_a_config_is_not_passed_over() -> None:
    config = SGD.hints["optimizer_config"]
    with pytest.raises(ContradictionError, match="is_legacy_optimizer is True"):
        _read_sgd({**config, "config": {**config["config"], "is_legacy_optimizer": True}})


@pytest.mark.parametrize(
    "overrides", [{"nesterov": True}, {"bias_correction": False}, {"weight_decay_per_rate": 0.1}], ids=str
)
def test_an_option_of_another_class_is_refused(overrides: dict[str, Any]) -> None:
    source = CORPUS / "keras224-adam-eps-none-nested" / "source" / "model.h5"
    with pytest.raises(HyperparameterError, match="Adam of generation keras2 has no"):
        migrate.read(source, overrides=overrides)


def test_an_option_of_another_class_stays_a_doubt_when_the_class_is_confirmed(tmp_path: Path) -> None:
    """As the refusal advises; it was exact, with the option."""
    source = tmp_path / "model.h5"
    shutil.copy(CORPUS / "tf24-adam-convbn" / "source" / "model.h5", source)
    with training_config(source) as training:
        training["optimizer_config"]["config"]["nesterov"] = True
    with pytest.raises(ContradictionError, match="override with --set class_name=Adam"):
        migrate.read(source)
    (reason,) = migrate.read(source, overrides={"class_name": "Adam"}).reasons
    assert "an option that Adam of that release does not have: nesterov = True" in reason


def test_patterns_that_choose_no_variable_are_refused() -> None:
    """`bias`, of a program, where the source knows variables by their places: it was exact, and all decayed."""
    checkpoint = adversary.case(CORPUS / "keras38-adamw-convbn")
    source = checkpoint.folder / checkpoint.source
    state = migrate.read(source, **checkpoint.hints, overrides={"weight_decay_exclude": ["bias$"]})
    assert state.fidelity == "exact"
    with pytest.raises(HyperparameterError, match=r"weight_decay_exclude: no variable matches 'offset'; .*gamma"):
        migrate.read(source, **checkpoint.hints, overrides={"weight_decay_exclude": ["offset"]})


def test_a_limit_of_zero_is_one_in_optimizer_v2() -> None:
    checkpoint = adversary.case(CORPUS / "tf24-sgd-momentum-ckpt-convbn")
    source, config = checkpoint.folder / checkpoint.source, checkpoint.hints["optimizer_config"]
    hints = {"optimizer_config": {**config, "config": {**config["config"], "clipnorm": 0.0}}}
    with pytest.raises(UnsupportedError, match="makes every gradient zero"):
        migrate.read(source, **hints)
    assert "clipnorm" not in migrate.read(source, **hints, overrides={"clipnorm": None}).hyperparameters


def test_a_confirmed_beta_is_rounded_as_the_release_rounds_it(tmp_path: Path) -> None:
    """tf.train's Adam takes 1 - beta_2 in float32; the release's own next steps are nearer to that by a factor of 3."""
    folder = CORPUS / "extra-tf24-train-adam-in-keras"
    checkpoint = adversary.case(folder)
    hints = {"overrides": {"clipnorm": None, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8}, **checkpoint.hints}
    report = migrate.migrate_checkpoint(checkpoint.folder / checkpoint.source, tmp_path / "out", **hints)
    assert report.fidelity == "exact"
    assert migrate.verify(checkpoint.folder / checkpoint.source, tmp_path / "out", **hints).ok
    assert adversary.error(folder, tmp_path / "out") < 0.06
