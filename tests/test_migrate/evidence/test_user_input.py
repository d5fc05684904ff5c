"""Each value of the user is used, confirms what is so, or is refused; none is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import migrate
from migrate.errors import ContradictionError
from migrate.evidence.user_input import settings
from optim.errors import DtoptError, HyperparameterError
from tests import adversary
from tests.places import CORPUS

ADAM = CORPUS / "tf24-adam-convbn" / "source" / "model.h5"
NADAM = CORPUS / "keras224-nadam-mlp" / "source" / "model.h5"


@pytest.mark.parametrize(
    ("hints", "error", "text"),
    [
        (
            {"generation": "keras2", "overrides": {"generation": "keras1"}},
            ContradictionError,
            "disagree: remove one of them",
        ),
        ({"overrides": {"lr": 0.1, "learning_rate": 0.2}}, ContradictionError, "Remove the wrong one"),
        ({"overrides": {"own_rule": "no"}}, HyperparameterError, "takes true or false"),
        ({"optimizer_config": {"class_name": "Adam"}}, HyperparameterError, "needs the members class_name and config"),
        ({"variables": []}, HyperparameterError, "--variables names no variable"),
    ],
)
@pytest.mark.parametrize("function", ["read", "inspect", "migrate_checkpoint", "verify"])
def test_values_that_disagree_are_refused_before_a_file_is_opened(
    function: str, hints: dict[str, Any], error: type[DtoptError], text: str, tmp_path: Path
) -> None:
    dest = (tmp_path / "dest",) if function in ("migrate_checkpoint", "verify") else ()
    with pytest.raises(error, match=text):
        getattr(migrate, function)("no such file.h5", *dest, **hints)


@pytest.mark.parametrize(
    "overrides",
    [
        *({"iterations": 500}, {"zero_slots": "source"}, {"slot_order": "source"}, {"gradients": "program"}),
        *({"repeated_rows": []}, {"own_rule": True}, {"gathered": None}),
    ],
    ids=str,
)
def test_a_reset_optimizer_has_no_steps_and_no_slots(overrides: dict[str, Any], tmp_path: Path) -> None:
    """They were ignored."""
    with pytest.raises(HyperparameterError, match=r"has no effect with --weights-only.*: remove one of them"):
        migrate.migrate_checkpoint(ADAM, tmp_path / "out", weights_only=True, overrides=overrides)
    assert not (tmp_path / "out").exists()


def test_what_a_reset_optimizer_does_use_is_taken(tmp_path: Path) -> None:
    overrides = {"iterations": 0, "learning_rate": 0.5}
    migrate.migrate_checkpoint(ADAM, tmp_path / "out", weights_only=True, overrides=overrides)
    assert migrate.read(tmp_path / "out").hyperparameters["learning_rate"] == 0.5


def test_a_generation_that_a_source_denies_is_refused_for_a_new_optimizer_too(tmp_path: Path) -> None:
    """It was ignored."""
    for overrides in ({}, {"class_name": "SGD"}):
        with pytest.raises(ContradictionError, match="is of generation optimizer_v2"):
            migrate.migrate_checkpoint(
                ADAM, tmp_path / "out", weights_only=True, generation="keras1", overrides=overrides
            )


@pytest.mark.parametrize("value", [-1, float("nan"), "x", [0.5], True], ids=repr)
def test_settings_are_refused_before_anything_is_written(
    value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from migrate.writers import slots

    monkeypatch.setattr(slots, "write", lambda *_, **__: pytest.fail("it was written"))
    case = adversary.case(CORPUS / "keras224-nadam-mlp")
    hints = {**case.hints, "overrides": {**(case.hints.get("overrides") or {}), "clipnorm": value}}
    with pytest.raises(DtoptError, match="clipnorm"):
        migrate.migrate_checkpoint(NADAM, tmp_path / "out", **hints)


VALUES = (0, 1, -1, 0.5, 1.5, float("nan"), True, None, "x", [], [0.5], {"a": 1})


@pytest.mark.parametrize("name", sorted(settings.known()))
@pytest.mark.quick(8)
def test_what_is_migrated_with_any_setting_can_be_loaded(name: str, tmp_path: Path) -> None:
    """Whatever --set says is refused, or `optim` loads what is written."""
    import tensorflow as tf

    import optim

    for i, value in enumerate(VALUES):
        dest = tmp_path / str(i)
        try:
            migrate.migrate_checkpoint(NADAM, dest, overrides={name: value})
        except DtoptError:
            assert not dest.exists()
            continue
        descriptions = optim.describe_checkpoint(str(dest)).variables
        variables = {v.name: tf.Variable(tf.zeros(v.shape, v.dtype), trainable=v.trainable) for v in descriptions}
        optimizer = optim.load_checkpoint(str(dest), variables)
        optimizer.apply_gradients([(tf.ones_like(v), v) for v in variables.values() if v.trainable])


@pytest.mark.parametrize("key", ["learning_rate", "lr", "momentum"])
def test_a_whole_number_is_a_real_one_where_keras_takes_no_other(key: str, tmp_path: Path) -> None:
    """`--set learning_rate=1` was written as an int, which Keras 3 refuses."""
    import keras

    source = CORPUS / "tf24-sgd-clipboth-mlp"
    case = adversary.case(source)
    hints = {**case.hints, "overrides": {**(case.hints.get("overrides") or {}), key: 0}}
    migrate.migrate_checkpoint(case.folder / case.source, tmp_path / "out.keras", **hints)
    optimizer = keras.saving.load_model(tmp_path / "out.keras").optimizer
    assert optimizer.get_config()["learning_rate" if key == "lr" else key] == 0.0
