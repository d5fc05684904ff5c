"""What each release's limits of gradients mean in `optim`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import migrate
import optim
from migrate.evidence import value_checks
from optim.errors import HyperparameterError, UnsupportedError
from optim.options import exclusive
from tests.places import CORPUS
from tests.test_migrate.arguments_of import arguments_of


@pytest.mark.parametrize(
    ("generation", "keras", "limits"),
    [
        ("keras1", "1.2.2", {"global_clipnorm": 0.5}),
        ("keras2", "2.2.4", {"global_clipnorm": 0.5}),
        ("keras2.3", "2.3.1", {"global_clipnorm": 0.5}),
        ("optimizer_v1", "2.0.8-tf", {"global_clipnorm": 0.5}),
        ("optimizer_v1", "2.1.5-tf", {"global_clipnorm": 0.5}),  # TF 1.8
        ("optimizer_v1", "2.2.4-tf", {"clipnorm": 0.5}),
        ("optimizer_v2", "2.9.0", {"clipnorm": 0.5}),
        ("optimizer", "2.15.0", {"clipnorm": 0.5}),
        ("keras3", "3.8.0", {"clipnorm": 0.5}),
    ],
)
def test_clipnorm_is_global_in_old_keras(generation: str, keras: str, limits: dict[str, float]) -> None:
    arguments = arguments_of("SGD", {"clipnorm": 0.5, "learning_rate": 0.1}, generation, keras)
    assert {k: v for k, v in arguments.values.items() if "clip" in k} == limits
    assert not arguments.reasons


@pytest.mark.parametrize(
    ("versions", "limits"),
    [
        ({"tensorflow": "1.9.0"}, {"global_clipnorm": 0.5}),
        ({"tensorflow": "1.10.1"}, {"clipnorm": 0.5}),
        ({"tensorflow_after": "1.10"}, {"clipnorm": 0.5}),
    ],
)
def test_one_keras_took_both_norms(versions: dict[str, str], limits: dict[str, float]) -> None:
    """TF 1.9 to 1.12 say 2.1.6-tf, and 1.9 alone takes one norm over all gradients."""
    config, keras = {"clipnorm": 0.5, "learning_rate": 0.1}, "2.1.6-tf"
    arguments = arguments_of("SGD", config, "optimizer_v1", keras, **versions)
    assert {k: v for k, v in arguments.values.items() if "clip" in k} == limits
    assert not arguments.reasons
    (reason,) = arguments_of("SGD", config, "optimizer_v1", keras).reasons
    assert "--set clipnorm=0.5 or --set global_clipnorm=0.5" in reason


@pytest.mark.parametrize("limit", ["clipnorm", "clipvalue"])
def test_a_limit_of_zero_is_one_from_tf_1_10_on(limit: str) -> None:
    """Run with TF 1.9.0, 1.10.1, 1.12.3 and 1.13.2."""
    config = {limit: 0.0, "learning_rate": 0.1}
    assert limit not in arguments_of("SGD", config, "optimizer_v1", "2.1.6-tf", tensorflow="1.9.0").values
    for keras, versions in (("2.1.6-tf", {"tensorflow_after": "1.10"}), ("2.2.4-tf", {}), ("2.1.6-tf", {})):
        with pytest.raises(UnsupportedError, match=f"{limit} is 0 .* makes every gradient zero"):
            arguments_of("SGD", config, "optimizer_v1", keras, **versions)


def test_a_limit_below_zero_was_none_for_older_releases_alone() -> None:
    """`clipvalue > 0` is asked in Keras 2.2.4; OptimizerV2 of TF 2.4 raises, and it was exact without a limit."""
    config = {"clipvalue": -1.0, "learning_rate": 0.1}
    assert "clipvalue" not in arguments_of("SGD", config, "keras2", "2.2.4").values
    with pytest.raises(
        UnsupportedError, match=r"clipvalue is -1 .* does not treat as no limit\. .*--set clipvalue=none"
    ):
        arguments_of("SGD", config, "optimizer_v2", "2.4.0", tensorflow="2.4")


@pytest.mark.parametrize("rate", [1e300, 10**400, -1e39])
def test_what_float32_cannot_hold_is_refused(rate: float) -> None:
    """It was exact, with steps that are not finite."""
    with pytest.raises(UnsupportedError, match=r"learning_rate = .*, which float32 cannot hold; .*--set learning_rate"):
        arguments_of("SGD", {"learning_rate": rate}, "keras2", "2.2.4")


@pytest.mark.parametrize(
    ("generation", "keras", "tensorflow", "order", "certain"),
    [
        ("keras2", "2.2.4", None, "norm_first", True),
        ("optimizer_v1", "2.2.4-tf", None, "norm_first", True),
        ("optimizer_v2", "2.2.4-tf", None, "norm_first", False),  # of TF 2.0, too, whose fit did not clip
        ("optimizer_v2", "2.3.0-tf", "2.2", "norm_first", True),
        ("optimizer_v2", "2.3.0-tf", "2.1", "norm_first", False),
        ("optimizer_v2", "2.3.0-tf", None, "norm_first", False),
        ("optimizer_v2", "2.4.0", None, "value_first", False),  # TF 2.3 calls its Keras so, too
        ("optimizer_v2", "2.4.0", "2.3", "norm_first", True),
        ("optimizer_v2", "2.4.0", "2.4", "value_first", True),
        ("optimizer_v2", "2.9.0", None, "value_first", True),
        ("optimizer_v2", None, None, "value_first", False),
    ],
)
def test_order_of_two_clippings(
    generation: str, keras: str | None, tensorflow: str | None, order: str, certain: bool
) -> None:
    arguments = arguments_of("SGD", {"clipnorm": 0.5, "clipvalue": 0.1}, generation, keras, tensorflow=tensorflow)
    assert arguments.values["clip_order"] == order
    assert bool(arguments.reasons) is not certain


def test_the_new_optimizer_applies_the_first_clipping_alone() -> None:
    arguments = arguments_of("SGD", {"clipnorm": 0.5, "clipvalue": 0.1}, "optimizer", "2.15.0")
    assert {k: v for k, v in arguments.values.items() if "clip" in k} == {"clipnorm": 0.5}
    assert any("applied only clipnorm" in w for w in arguments.warnings)


ADAM = CORPUS / "tf24-adam-convbn" / "source" / "model.h5"
CLIPPED = CORPUS / "extra-tf22-sgd-clipboth-order-trap-h5" / "source"


def test_limits_that_exclude_each_other_are_refused_with_what_resolves_it(tmp_path: Path) -> None:
    """They were exact, and nothing could load what was written."""
    source = next(CLIPPED.glob("*.h5"))
    clipnorm = migrate.read(source).hyperparameters["clipnorm"]
    with pytest.raises(
        HyperparameterError, match=r"exclude each other: .*; leave clipnorm out with --set clipnorm=none"
    ):
        migrate.migrate_checkpoint(source, tmp_path / "out", overrides={"global_clipnorm": clipnorm / 2})
    assert not (tmp_path / "out").exists()
    overrides = {"global_clipnorm": clipnorm / 2, "clipnorm": None}
    migrate.migrate_checkpoint(source, tmp_path / "out", overrides=overrides)
    assert migrate.read(tmp_path / "out").hyperparameters["global_clipnorm"] == clipnorm / 2
    assert migrate.verify(source, tmp_path / "out", overrides=overrides).ok


@pytest.mark.parametrize("pair", exclusive.EXCLUSIVE, ids=str)
def test_all_that_excludes_is_refused_by_optimizers_and_by_migrate(pair: tuple[str, str, str], tmp_path: Path) -> None:
    """One declaration for both."""
    on: dict[str, Any] = {
        "clipnorm": 1.0,
        "global_clipnorm": 1.0,
        "use_ema": True,
        "stochastic_average": {"start_averaging": 0, "average_period": 10},
        "lazy_rows": ["kernel"],
        "lookahead": {"sync_period": 6, "slow_step_size": 0.5},
        "adaptive_grad_clip": {"clipping": 0.01, "eps": 0.001, "exclude": []},
        "cautious": True,
        "master_copies": True,
        "stochastic_rounding": True,
    }
    options = {name: on[name] for name in pair[:2]}
    with pytest.raises(HyperparameterError, match="exclude each other"):
        optim.Adam(**options)
    state = migrate.read(ADAM)
    wrong = replace(state, hyperparameters={**state.hyperparameters, **options})
    with pytest.raises(UnsupportedError, match=f"exclude each other.*--set {pair[0]}=none or --set {pair[1]}=none"):
        value_checks.check_settings(wrong)


def test_one_limit_alone_acts_in_new_optimizers() -> None:
    """--set was ignored there, without a word."""
    source = next((CLIPPED.parents[1] / "extra-keras315-adam-twins-keras" / "source").glob("*.keras"))
    with pytest.raises(HyperparameterError, match=r"apply one limit alone; give one of them"):
        migrate.read(source, overrides={"clipnorm": 1.0, "clipvalue": 0.5})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", False),
        ("beta_1", True),
        ("weight_decay", "x"),
        ("ema_overwrite_frequency", -1),
        ("weight_decay_exclude", None),
        ("learning_rate", [1]),
    ],
)
def test_what_the_loader_refuses_is_refused_before(name: str, value: Any) -> None:
    state = migrate.read(ADAM)
    with pytest.raises(UnsupportedError, match=f"{name} must be .*--set {name}=VALUE"):
        value_checks.check_settings(replace(state, hyperparameters={**state.hyperparameters, name: value}))


def test_rows_that_no_step_leaves_out_are_refused() -> None:
    state = migrate.read(ADAM)
    wrong = replace(state, algorithm="Lamb", hyperparameters={**state.hyperparameters, "lazy_rows": ["kernel"]})
    with pytest.raises(
        UnsupportedError, match=r"a step of Lamb cannot leave single rows out. Use --set 'lazy_rows=\[\]'"
    ):
        value_checks.check_settings(wrong)
