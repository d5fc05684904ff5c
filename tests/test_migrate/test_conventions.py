"""What each generation's options mean in `optim`'s."""

from __future__ import annotations

from typing import Any

import pytest

from migrate import conventions
from migrate.algorithms import ALGORITHMS, find
from migrate.errors import MissingHintError
from optim.errors import UnsupportedError


def _arguments(
    name: str,
    config: dict[str, Any],
    generation: str,
    keras: str | None = None,
    scalars: Any = None,
    dtype: str = "float32",
) -> conventions.Arguments:
    algorithm = find(name)
    full, _ = conventions.completed(config, algorithm, generation)
    return conventions.arguments(full, scalars or {}, algorithm, generation, {"keras": keras} if keras else {}, [dtype])


@pytest.mark.parametrize(
    ("generation", "keras", "limits"),
    [
        ("keras1", "1.2.2", {"global_clipnorm": 0.5}),
        ("keras2", "2.2.4", {"global_clipnorm": 0.5}),
        ("keras2.3", "2.3.1", {"global_clipnorm": 0.5}),
        ("optimizer_v1", "2.0.8-tf", {"global_clipnorm": 0.5}),
        ("optimizer_v1", "2.1.6-tf", {"clipnorm": 0.5}),
        ("optimizer_v2", "2.9.0", {"clipnorm": 0.5}),
        ("optimizer", "2.15.0", {"clipnorm": 0.5}),
        ("keras3", "3.8.0", {"clipnorm": 0.5}),
    ],
)
def test_clipnorm_is_global_in_old_keras(generation: str, keras: str, limits: dict[str, float]) -> None:
    found = _arguments("SGD", {"clipnorm": 0.5, "learning_rate": 0.1}, generation, keras)
    assert {k: v for k, v in found.values.items() if "clip" in k} == limits
    assert not found.reasons


@pytest.mark.parametrize(
    ("generation", "keras", "order", "certain"),
    [
        ("keras2", "2.2.4", "norm_first", True),
        ("optimizer_v1", "2.1.6-tf", "norm_first", True),
        ("optimizer_v2", "2.2.4-tf", "norm_first", True),
        ("optimizer_v2", "2.3.0-tf", "norm_first", True),
        ("optimizer_v2", "2.4.0", "value_first", True),
        ("optimizer_v2", "2.9.0", "value_first", True),
        ("optimizer_v2", None, "value_first", False),
    ],
)
def test_order_of_two_clippings(generation: str, keras: str | None, order: str, certain: bool) -> None:
    found = _arguments("SGD", {"clipnorm": 0.5, "clipvalue": 0.1}, generation, keras)
    assert found.values["clip_order"] == order
    assert bool(found.reasons) is not certain


def test_the_new_optimizer_applies_the_first_clipping_alone() -> None:
    found = _arguments("SGD", {"clipnorm": 0.5, "clipvalue": 0.1}, "optimizer", "2.15.0")
    assert {k: v for k, v in found.values.items() if "clip" in k} == {"clipnorm": 0.5}
    assert any("clipnorm alone" in w for w in found.warnings)


@pytest.mark.parametrize(
    ("generation", "stored", "meant"),
    [("keras2", None, 1e-7), ("optimizer_v2", 0.0, 1e-7), ("optimizer", 0.0, 0.0), ("keras2", 1e-8, 1e-8)],
)
def test_epsilon(generation: str, stored: float | None, meant: float) -> None:
    assert _arguments("Adam", {"epsilon": stored}, generation).values["epsilon"] == meant


def test_defaults_of_the_generation_stand_in_for_a_partial_config() -> None:
    assert _arguments("Adadelta", {}, "keras1").values["learning_rate"] == 1.0
    assert _arguments("Adadelta", {}, "keras1").values["epsilon"] == 1e-8
    assert _arguments("Adadelta", {}, "optimizer_v2").values["learning_rate"] == 0.001
    with pytest.raises(MissingHintError, match="epsilon"):
        _arguments("Adam", {}, "keras2")


def test_lr_and_decay() -> None:
    found = _arguments("SGD", {"lr": 0.25, "decay": 0.5}, "keras2").values
    assert (found["learning_rate"], found["decay"]) == (0.25, 0.5)
    assert "decay" not in _arguments("SGD", {"decay": 0.0}, "optimizer_v2").values
    assert "decay" not in _arguments("SGD", {"decay": 0.5}, "keras3").values


def test_scalars_in_the_checkpoint_are_newer_than_the_config() -> None:
    found = _arguments("SGD", {"learning_rate": 0.1}, "optimizer_v2", scalars={"learning_rate": 0.05, "momentum": 0.5})
    assert (found.values["learning_rate"], found.values["momentum"]) == (0.05, 0.5)
    assert any("0.05" in w for w in found.warnings)


def test_betas_are_those_that_act_in_float32() -> None:
    assert _arguments("Adam", {}, "optimizer").values["beta_2"] == 0.9990000128746033
    assert _arguments("Adam", {}, "optimizer", dtype="float64").values["beta_2"] == 0.999


def test_a_stock_schedule_is_carried_and_a_custom_one_refused() -> None:
    schedule = {
        "module": "keras",
        "class_name": "ExponentialDecay",
        "config": {"decay_rate": 0.5},
        "registered_name": None,
    }
    found = _arguments("SGD", {"learning_rate": schedule}, "optimizer", scalars={"learning_rate": 0.3}).values
    assert found["learning_rate"] == {"class_name": "ExponentialDecay", "config": {"decay_rate": 0.5}}
    with pytest.raises(UnsupportedError, match="MySchedule"):
        _arguments("SGD", {"learning_rate": {"class_name": "Mine>MySchedule", "config": {}}}, "optimizer")


def test_what_is_not_carried_makes_it_approximate() -> None:
    assert _arguments("SGD", {"something_new": 3}, "optimizer").reasons
    assert not _arguments("SGD", {"something_new": None, "jit_compile": True}, "optimizer").reasons


def test_averaging_and_weight_decay() -> None:
    config = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": None, "weight_decay": 0.25}
    found = _arguments("SGD", config, "optimizer").values
    assert (found["use_ema"], found["ema_momentum"], found["weight_decay"]) == (True, 0.5, 0.25)
    assert "use_ema" not in _arguments("SGD", config, "optimizer_v2").values


def test_an_unknown_optimizer_is_refused_with_the_list() -> None:
    with pytest.raises(UnsupportedError, match=", ".join(a.name for a in ALGORITHMS)):
        find("RAdam")
