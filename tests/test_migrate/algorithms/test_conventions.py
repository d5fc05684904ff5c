"""What each generation's options mean in `optim`'s."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from migrate.algorithms import ALGORITHMS, find, lazy_rows, nadam, rates, tf_train, wrappers
from migrate.algorithms.arguments import Arguments
from migrate.bytes.arrays import LazyArray
from migrate.errors import ContradictionError, DamagedFileError, MissingHintError
from migrate.generations import GENERATIONS
from migrate.releases.versions import Versions
from optim.errors import UnsupportedError
from tests.test_migrate.arguments_of import arguments_of
from tests.test_migrate.confirm import typed


@pytest.mark.parametrize(
    ("generation", "stored", "meant"),
    [("keras2", None, 1e-7), ("optimizer_v2", 0.0, 1e-7), ("optimizer", 0.0, 0.0), ("keras2", 1e-8, 1e-8)],
)
def test_epsilon(generation: str, stored: float | None, meant: float) -> None:
    assert arguments_of("Adam", {"epsilon": stored}, generation).values["epsilon"] == meant


def test_defaults_of_the_generation_stand_in_for_a_partial_config() -> None:
    assert arguments_of("Adadelta", {}, "keras1").values["learning_rate"] == 1.0
    assert arguments_of("Adadelta", {}, "keras1").values["epsilon"] == 1e-8
    assert arguments_of("Adadelta", {}, "optimizer_v2").values["learning_rate"] == 0.001
    with pytest.raises(MissingHintError, match="epsilon"):
        arguments_of("Adam", {}, "keras2")


def test_lr_and_decay() -> None:
    values = arguments_of("SGD", {"lr": 0.25, "decay": 0.5}, "keras2").values
    assert (values["learning_rate"], values["decay"]) == (0.25, 0.5)
    assert "decay" not in arguments_of("SGD", {"decay": 0.0}, "optimizer_v2").values
    assert "decay" not in arguments_of("SGD", {"decay": 0.5}, "keras3").values


def test_scalars_in_the_checkpoint_are_newer_than_the_config() -> None:
    scalars = {"learning_rate": 0.05, "momentum": 0.5}
    arguments = arguments_of("SGD", {"learning_rate": 0.1}, "optimizer_v2", scalars=scalars)
    assert (arguments.values["learning_rate"], arguments.values["momentum"]) == (0.05, 0.5)


def test_betas_are_those_that_act_in_float32() -> None:
    """OptimizerV2 rounds β wherever it acts; since 2.9's experimental classes only the powers are of the rounded β."""
    rounded = 0.9990000128746033
    for generation in ("optimizer_v2", "optimizer_v1", "keras2.3", "tf1"):
        assert arguments_of("Adam", {}, generation).values["beta_2"] == rounded
    for generation in ("experimental", "optimizer", "keras3"):
        for name in ("Adam", "Adamax"):
            values = arguments_of(name, {}, generation).values
            assert values["beta_2"] == 0.999
            assert values["float32_powers"] is True
        assert arguments_of("Nadam", {}, generation).values["beta_2"] == rounded
        assert arguments_of("RMSprop", {"rho": 0.999}, generation).values["rho"] == 0.999
    assert arguments_of("Lamb", {}, "keras3").values["float32_powers"] is True
    assert arguments_of("RMSprop", {"rho": 0.999}, "optimizer_v2").values["rho"] == rounded
    assert arguments_of("Adadelta", {"rho": 0.999}, "optimizer_v2").values["rho"] == rounded
    assert arguments_of("Adadelta", {"rho": 0.999}, "keras2.3").values["rho"] == 0.999
    wide = arguments_of("Adam", {}, "optimizer", dtype="float64").values
    assert wide["beta_2"] == 0.999
    assert "float32_powers" not in wide


STEPS = {"initial_learning_rate": 0.1, "decay_steps": 5}
DECAYING = {**STEPS, "decay_rate": 0.5}
NEEDED: dict[str, dict[str, object]] = {
    "ExponentialDecay": DECAYING,
    "InverseTimeDecay": DECAYING,
    "PolynomialDecay": STEPS,
    "CosineDecay": STEPS,
    "CosineDecayRestarts": {"initial_learning_rate": 0.1, "first_decay_steps": 5},
}
"""Arguments without a default, by schedule."""


def test_a_stock_schedule_is_carried_and_a_custom_one_refused() -> None:
    schedule = {
        "module": "keras",
        "class_name": "ExponentialDecay",
        "config": DECAYING,
        "registered_name": None,
    }
    values = arguments_of("SGD", {"learning_rate": schedule}, "optimizer", scalars={"learning_rate": 0.3}).values
    assert values["learning_rate"] == {
        "class_name": "ExponentialDecay",
        "config": {**DECAYING, "staircase": False},
    }
    for custom in ({"class_name": "Mine>ExponentialDecay"}, {**schedule, "module": "mine"}):
        config = {"learning_rate": {"config": {}, **custom}}
        assert rates.is_own(arguments_of("SGD", config, "optimizer").values["learning_rate"])


@pytest.mark.parametrize(
    ("name", "whole", "generation"),
    [
        ("ExponentialDecay", {"staircase": True}, "optimizer_v2"),
        ("InverseTimeDecay", {"staircase": True}, "keras3"),
        ("PolynomialDecay", {"end_learning_rate": 0.1, "power": 2.0, "cycle": True}, "optimizer"),
        ("CosineDecay", {"alpha": 0.1}, "optimizer_v2"),
        ("CosineDecay", {"alpha": 0.1, "warmup_target": 0.5, "warmup_steps": 3}, "keras3"),
        ("CosineDecay", {"alpha": 0.1, "warmup_target": 0.5, "warmup_steps": 3}, "optimizer"),
        ("CosineDecayRestarts", {"t_mul": 1.0, "m_mul": 0.5, "alpha": 0.1}, "optimizer"),
    ],
)
def test_a_schedule_that_leaves_an_argument_out_is_doubted(
    name: str, whole: dict[str, object], generation: str
) -> None:
    def reasons(config: dict[str, object]) -> list[str]:
        rate = {"class_name": name, "config": {**NEEDED[name], **config}}
        arguments = arguments_of("SGD", {"learning_rate": rate}, generation)
        return [arguments.origins["learning_rate"].reason] if not arguments.origins["learning_rate"].certain else []

    assert reasons(whole) == []
    for key in whole:
        (reason,) = reasons({k: v for k, v in whole.items() if k != key})
        assert f"dtopt assumes {key} = " in reason
        assert "To confirm: --set 'learning_rate={" in reason


def test_what_is_not_carried_makes_it_approximate() -> None:
    assert arguments_of("SGD", {"something_new": 3}, "optimizer").reasons
    assert not arguments_of("SGD", {"something_new": None, "jit_compile": True}, "optimizer").reasons


OPTIONS: dict[str, Any] = {
    "use_ema": True,
    "decay": 0.1,
    "weight_decay": 0.01,
    "gradient_accumulation_steps": 2,
    "clipnorm": 0.5,
    "clipvalue": 0.5,
    "global_clipnorm": 0.5,
    "amsgrad": True,
    "centered": True,
    "nesterov": True,
    "momentum": 0.5,
}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_option_of_a_config_is_carried_or_doubted(generation: str) -> None:
    """Also those that only other generations have, whoever wrote them into the config; Keras 3 itself ignores decay."""
    swallowed = []
    for algorithm in (a for a in ALGORITHMS if generation in a.generations):
        config = {**algorithm.defaults(generation), "learning_rate": 0.01, "epsilon": 1e-7}
        plain = arguments_of(algorithm.name, config, generation)
        for option in OPTIONS.keys() - config.keys() - ({"decay"} if generation == "keras3" else set()):
            try:
                arguments = arguments_of(algorithm.name, {**config, option: OPTIONS[option]}, generation)
            except UnsupportedError:
                continue
            if arguments.values == plain.values and not arguments.reasons:
                swallowed.append((algorithm.name, option))
    assert set(swallowed) <= SWALLOWED


SWALLOWED = {("LARS", "weight_decay"), *((a.name, "decay") for a in ALGORITHMS if not a.time_decay)}
"""tf-models' LARS calls it weight_decay_rate; Nadam's decay is that of its momenta, and some rules ignore it."""


@pytest.mark.parametrize("key", ["weight_decay_per_step", "weight_decay_per_rate"])
def test_a_decay_that_is_no_number_is_refused(key: str) -> None:
    config = {**find("Adam").defaults("optimizer_v2"), "learning_rate": 0.01, key: None}
    with pytest.raises(UnsupportedError, match=f"--set {key}=VALUE"):
        arguments_of("Adam", config, "optimizer_v2")


def test_averaging_and_weight_decay() -> None:
    config = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": None, "weight_decay": 0.25}
    values = arguments_of("SGD", config, "optimizer").values
    assert (values["use_ema"], values["ema_momentum"], values["weight_decay"]) == (True, 0.5, 0.25)
    assert "use_ema" not in arguments_of("SGD", config, "optimizer_v2").values


def test_an_unknown_optimizer_is_refused_with_the_list() -> None:
    with pytest.raises(UnsupportedError, match=", ".join(a.name for a in ALGORITHMS)):
        find("RAdam")


@pytest.mark.parametrize(
    ("generation", "momentum", "inside", "in_slot"),
    [
        ("keras2", 0.0, False, True),
        ("optimizer_v2", 0.0, False, True),
        ("optimizer_v2", 0.9, True, True),
        ("experimental", 0.9, False, False),
        ("optimizer", 0.9, True, True),
        ("keras3", 0.0, True, True),
        ("tf1", 0.9, True, True),
    ],
)
def test_where_rmsprop_has_epsilon_and_the_learning_rate(
    generation: str, momentum: float, inside: bool, in_slot: bool
) -> None:
    values = arguments_of("RMSprop", {"momentum": momentum, "epsilon": 1e-6}, generation).values
    assert values["epsilon_inside"] is inside
    assert values.get("learning_rate_in_momentum", True) is in_slot


@pytest.mark.parametrize(
    ("generation", "epsilon", "inside", "start"),
    [
        ("keras2.3", 1e-7, False, 0.0),
        ("optimizer_v2", 1e-7, False, 0.1),
        ("experimental", 1e-7, True, 0.1),
        ("keras3", 1e-7, True, 0.1),
        ("tf1", 0.0, False, 0.1),
    ],
)
def test_epsilon_and_start_of_adagrad(generation: str, epsilon: float, inside: bool, start: float) -> None:
    values = arguments_of("Adagrad", {}, generation).values
    assert (values["epsilon"], values["epsilon_inside"], values["initial_accumulator_value"]) == (
        epsilon,
        inside,
        start,
    )


def test_nadams_decay_is_that_of_its_schedule() -> None:
    values = arguments_of("Nadam", {"decay": 0.01}, "optimizer_v2").values
    assert (values["schedule_decay"], "decay" in values) == (0.01, False)
    assert arguments_of("Nadam", {"schedule_decay": 0.02}, "keras2.3").values["schedule_decay"] == 0.02
    assert arguments_of("Nadam", {}, "optimizer").values["schedule_decay"] == 1.0


def test_the_product_of_nadam_is_what_the_source_holds_and_computed_where_it_holds_none() -> None:
    algorithm, values = find("Nadam"), {"beta_1": 0.9, "schedule_decay": 1.0}
    exact = nadam.product(0.9, 1.0, 3)
    assert exact == pytest.approx(0.9**3 * (1 - 0.48) * (1 - 0.5 * 0.96**2) * (1 - 0.5 * 0.96**3))
    assert algorithm.state(values, {}, "optimizer", 3)[0] == {"u_product": exact}
    assert algorithm.state(values, {"u_product": 0.5}, "optimizer_v2", 3)[0] == {"u_product": 0.5}
    for generation, product, certain in (
        ("optimizer", exact, True),
        ("optimizer", exact**2, False),  # of two variables, inside `fit`, which goes on so
        ("keras3", exact**2, False),
        ("optimizer", 0.5, False),
    ):
        assert algorithm.state(values, {"u_product": product}, generation, 3)[1][0].certain is certain
    with pytest.raises(DamagedFileError):
        algorithm.state(values, {"u_product": float("nan")}, "keras3", 3)
    (origin,) = algorithm.state(values, {}, "optimizer", 3)[1]
    assert "once per variable" in origin.reason
    assert typed(origin.confirm) == {"u_product": exact}
    assert algorithm.state(values, {}, "keras2", 0)[1][0].certain


@pytest.mark.parametrize(
    ("keras", "tensorflow", "scaled", "certain"),
    [
        ("2.3.0-tf", None, False, True),
        ("2.4.0", None, True, True),
        ("2.4.0", "2.3", True, True),
        ("2.4.0", "2.4", True, True),
        ("2.4.0", "2.4.1", True, True),
        ("2.3.0-tf", "2.2", False, True),
        ("2.5.0", None, True, True),
        (None, "2.6.5", False, True),
        ("2.9.0", None, False, True),
        (None, None, False, False),
    ],
)
def test_the_scaled_slot_of_ftrl_with_shrinkage(
    keras: str | None, tensorflow: str | None, scaled: bool, certain: bool
) -> None:
    config = {"l2_shrinkage_regularization_strength": 0.1}
    arguments = arguments_of("Ftrl", config, "optimizer_v2", keras, tensorflow=tensorflow)
    assert arguments.values.get("learning_rate_in_linear", False) is scaled
    assert bool(arguments.reasons) is not certain
    assert not arguments_of("Ftrl", {}, "optimizer_v2", "2.4.0").reasons


@pytest.mark.parametrize(
    ("tensorflow", "certain"), [("1.6.0", False), ("1.8.0", False), ("1.12.3", True), (None, False)]
)
def test_ftrl_shrank_otherwise_in_the_first_releases(tensorflow: str | None, certain: bool) -> None:
    """Run: with 0.0005 the steps of TF 1.8 were off by 25 times what rounding explains, with 0.03 by 900 times."""
    arguments = arguments_of("Ftrl", {"l2_shrinkage_regularization_strength": 0.0005}, "tf1", tensorflow=tensorflow)
    assert any("another formula" in reason for reason in arguments.reasons) is not certain
    assert not arguments_of("Ftrl", {}, "tf1", tensorflow="1.8.0").reasons


def test_dtensor_took_options_that_it_ignored() -> None:
    config = {"clipnorm": 0.5, "use_ema": True, "ema_momentum": 0.9}
    arguments = arguments_of("Adam", config, "experimental", dtensor="yes")
    assert not {"clipnorm", "use_ema"} & set(arguments.values)
    assert "clipnorm, use_ema: removed" in arguments.warnings[0]
    assert arguments_of("Adam", config, "experimental").values["clipnorm"] == 0.5
    without_averages = arguments_of("Adam", config, "experimental", dtensor="perhaps")  # which a strategy's would have
    assert not {"clipnorm", "use_ema"} & set(without_averages.values)


@pytest.mark.parametrize(
    ("name", "config", "generation", "versions", "message"),
    [
        ("RMSprop", {"centered": True}, "experimental", {}, "averaged squared gradients"),
        ("AdamW", {}, "experimental", {}, "TF 2.9"),
        ("RMSprop", {"centered": True}, "optimizer", {}, None),
        ("AdamW", {}, "experimental", {"tensorflow": "2.10"}, None),
    ],
)
def test_state_of_releases_with_a_defect_is_refused(
    name: str, config: dict[str, Any], generation: str, versions: dict[str, str], message: str | None
) -> None:
    algorithm = find(name)
    problem = algorithm.check({**algorithm.defaults(generation), **config}, generation, Versions(**versions))
    assert (problem is None) if message is None else (message in str(problem))


def test_accumulation_is_carried_where_it_is_the_same() -> None:
    config = {"gradient_accumulation_steps": 4}
    arguments = arguments_of("Adam", config, "keras3", "3.8.0")
    assert (arguments.values["gradient_accumulation_steps"], arguments.reasons) == (4, ())
    assert arguments_of("Adam", config, "keras3").reasons
    schedule = {"class_name": "ExponentialDecay", "config": DECAYING}
    assert "count_calls" not in arguments.values
    for more in ({"learning_rate": schedule}, {"use_ema": True}):
        assert arguments_of("Adam", {**config, **more}, "keras3", "3.8.0").values["count_calls"] is True
    with pytest.raises(UnsupportedError, match="gradient_accumulation_steps"):
        arguments_of("Adam", config, "keras3", "3.4.1")


@pytest.mark.parametrize(
    ("name", "config", "generation", "rows"),
    [
        ("SGD", {"momentum": 0.9}, "optimizer_v2", True),
        ("SGD", {"momentum": 0.0}, "optimizer_v2", False),
        ("SGD", {"momentum": 0.9}, "keras2", False),
        ("SGD", {"momentum": 0.9}, "optimizer", False),
        ("Adadelta", {}, "tf1", True),
        ("Adam", {}, "optimizer_v2", False),
        ("Adamax", {}, "optimizer_v2", True),
        ("RMSprop", {"momentum": 0.5}, "optimizer_v2", True),
        ("RMSprop", {"momentum": 0.0}, "optimizer_v2", False),
        ("RMSprop", {"momentum": 0.0}, "tf1", True),
        ("Ftrl", {}, "optimizer_v2", True),
    ],
)
def test_rows_without_a_gradient_are_kept_where_they_were(
    name: str, config: dict[str, Any], generation: str, rows: bool
) -> None:
    algorithm = find(name)
    full = {**algorithm.defaults(generation), **config}
    arguments = Arguments()
    lazy_rows.put_in(arguments, full, algorithm, generation, ["a.b/embeddings", "dense/kernel"])
    assert arguments.values == ({"lazy_rows": [r"^a\.b/embeddings$"]} if rows else {})
    assert bool(arguments.warnings) is rows
    lazy_rows.put_in(arguments, {**full, "lazy_rows": []}, algorithm, generation, ["a.b/embeddings"])
    assert arguments.values == {"lazy_rows": []}


@pytest.mark.parametrize(
    ("name", "config", "excluded", "tables", "doubted"),
    [
        ("Adam", {"weight_decay_per_step": 0.01}, [], ["embedding/embeddings"], "do not decay in Adam"),
        ("Adam", {"weight_decay_per_step": 0.01}, ["embed"], ["embedding/embeddings"], ""),
        ("Adam", {"weight_decay_per_step": 0.01}, [], ["own/table"], "own/table: "),
        ("Adam", {"weight_decay_per_step": 0.01}, [], [], ""),
        ("Adam", {"weight_decay_per_rate": 0.01}, [], ["embedding/embeddings"], ""),
        ("SGD", {"weight_decay_per_step": 0.01}, [], ["embedding/embeddings"], "do not decay in SGD"),
        ("SGD", {"weight_decay_per_step": 0.01, "momentum": 0.9}, [], ["embedding/embeddings"], ""),
        ("AdaBelief", {}, [], ["embedding/embeddings"], "updates their slots in another way"),
        ("AdaBelief", {}, [], [], ""),
    ],
)
def test_rows_that_addons_left_alone_in_a_way_of_its_own_are_doubted(
    name: str, config: dict[str, Any], excluded: list[str], tables: list[str], doubted: str
) -> None:
    """AdamW and SGDW of TensorFlow Addons let only the rows decay that have a gradient, or none (run in TF 2.7)."""
    algorithm = find(name)
    arguments = Arguments({"weight_decay_exclude": excluded})
    full = {**algorithm.defaults("optimizer_v2"), **config}
    lazy_rows.put_in(arguments, full, algorithm, "optimizer_v2", [*tables, "dense/kernel"])
    assert (doubted in arguments.reasons[0]) if doubted else not arguments.reasons
    if tables and doubted:
        assert arguments.reasons[0].endswith(". Set it with --set 'lazy_rows=[]', if their gradients are dense")


def test_variables_of_one_row_leave_no_row_out() -> None:
    """A scalar is not looked up in, and of one row every lookup names it."""
    algorithm, arguments = find("Adamax"), Arguments()
    config, single = algorithm.defaults("optimizer_v2"), lazy_rows.Sparse(single=frozenset({"scale", "cls_token"}))
    lazy_rows.put_in(arguments, config, algorithm, "optimizer_v2", ["scale", "cls_token"], single)
    assert not arguments.reasons
    lazy_rows.put_in(arguments, config, algorithm, "optimizer_v2", ["scale", "memory"], single)
    assert arguments.reasons[0].startswith("memory: ")


def test_rows_of_which_nothing_tells_how_they_went_on_are_doubted() -> None:
    """TF 2.3 to 2.5 multiplied Ftrl's `linear` by the learning rate, and for rows did not (run in each)."""
    config = {"l2_shrinkage_regularization_strength": 0.1}
    for name, tensorflow, sparse in (
        ("Ftrl", "2.5.3", lazy_rows.Sparse()),
        ("Adamax", None, lazy_rows.Sparse(scaled=True)),
    ):
        algorithm = find(name)
        arguments = arguments_of(name, config if name == "Ftrl" else {}, "optimizer_v2", tensorflow=tensorflow)
        assert not arguments.reasons
        full = {**algorithm.defaults("optimizer_v2"), **config}
        lazy_rows.put_in(arguments, full, algorithm, "optimizer_v2", ["embedding/embeddings"], sparse)
        assert "rows without a gradient" in arguments.reasons[0]
        assert "lazy_rows=[]" in arguments.reasons[0]


@pytest.mark.parametrize(
    ("generation", "wrapper_names", "versions", "dense"),
    [
        ("optimizer_v2", ["LossScaleOptimizer"], {"tensorflow": "2.2.3"}, True),
        ("optimizer_v2", ["LossScaleOptimizer"], {"tensorflow": "2.3.4"}, False),
        ("optimizer_v2", ["LossScaleOptimizer"], {"tensorflow_after": "2.4"}, False),
        ("optimizer_v2", ["LossScaleOptimizer"], {}, None),
        ("optimizer_v2", ["Addons>MovingAverage"], {}, False),
        ("optimizer", ["LossScaleOptimizer"], {}, False),
    ],
)
def test_which_releases_scale_losses_by_making_gradients_dense(
    generation: str, wrapper_names: list[str], versions: dict[str, str], dense: bool | None
) -> None:
    assert wrappers.makes_dense(wrapper_names, generation, Versions(**versions)) is dense


def test_nadams_sparse_rows_stood_still_while_their_slots_went_on() -> None:
    algorithm, arguments = find("Nadam"), Arguments()
    lazy_rows.put_in(arguments, algorithm.defaults("optimizer_v2"), algorithm, "optimizer_v2", ["embedding/embeddings"])
    assert arguments.values == {"lazy_rows": ["^embedding/embeddings$"], "lazy_rows_keep_slots": False}
    assert not arguments.reasons


@pytest.mark.parametrize(
    ("class_name", "name", "config"),
    [
        ("GradientDescentOptimizer", "SGD", {}),
        ("tf.train.MomentumOptimizer", "SGD", {"use_nesterov": True, "momentum": 0.5}),
        ("RMSPropOptimizer", "RMSprop", {"decay": 0.5}),
        ("AdamOptimizer", "Adam", {"beta1": 0.5, "use_locking": True}),
    ],
)
def test_tf_train_arguments_under_keras_names(class_name: str, name: str, config: dict[str, Any]) -> None:
    wanted = {"use_nesterov": "nesterov", "decay": "rho", "beta1": "beta_1", "momentum": "momentum"}
    kept = {wanted[key]: value for key, value in config.items() if key in wanted}
    assert tf_train.keras_style(class_name, config) == (name, kept)


def test_steps_of_adam_optimizer_from_its_powers() -> None:
    power = np.float32(0.999)
    for _ in range(5000):
        power = power * np.float32(0.999)
    scalars = {
        "train/beta2_power": LazyArray((), "float32", lambda: np.array(power), "train/beta2_power"),
        "train/beta1_power": LazyArray((), "float32", lambda: np.array(0, np.float32), "train/beta1_power"),
    }
    steps_and_reason = tf_train.steps(scalars, {"beta_1": 0.9, "beta_2": 0.999}, "Adam")
    assert steps_and_reason is not None
    assert (steps_and_reason[0], "beta2_power" in steps_and_reason[1]) == (5000, True)
    with pytest.raises(ContradictionError, match=r"beta_2 is 0.99 and train/beta2_power is 0\.0067"):
        tf_train.steps(scalars, {"beta_1": 0.9, "beta_2": 0.99}, "Adam")
