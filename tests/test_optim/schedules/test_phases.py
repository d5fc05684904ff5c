"""Schedules that Keras does not have: numbers of torch, optax and transformers, configs, restarts, refusals."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import migrate
import optim
from optim import schedules
from optim.errors import HyperparameterError, UnsupportedError
from tests import places
from tests.helpers.breadth import covering
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.support import put, variable

GOLDENS = json.loads((places.GOLDENS / "schedule_goldens.json").read_text(encoding="utf-8"))
COSINE = {"initial_learning_rate": 0.2, "decay_steps": 30, "alpha": 0.1}
SCHEDULES = {
    "LinearWarmup": {"schedule": {"class_name": "CosineDecay", "config": COSINE}, "warmup_steps": 5},
    "OneCycle": {"max_learning_rate": 0.2, "total_steps": 20},
    "WarmupStableDecay": {"learning_rate": 0.2, "warmup_steps": 4, "stable_steps": 6, "decay_steps": 5},
}


@pytest.mark.parametrize("golden", GOLDENS, ids=[f"{each['source']}-{k}" for k, each in enumerate(GOLDENS)])
@pytest.mark.quick(4)
def test_the_rates_of_other_libraries(golden: dict[str, Any]) -> None:
    """By NumPy, in an eager step and in a function: optax computes some constants in float32."""
    schedule = schedules.from_config({"class_name": golden["class_name"], "config": golden["config"]})
    close = {"rtol": 1e-6 if golden["source"].startswith("optax") else 1e-12, "atol": 1e-12}
    function = tf.function(schedule, autograph=False)
    for step, rate in enumerate(golden["rates"]):
        np.testing.assert_allclose(schedule.at(step), rate, **close, err_msg=str(step))
        for found in (schedule(step), function(tf.constant(step, tf.int64))):
            np.testing.assert_allclose(float(found), schedule.at(step), rtol=1e-14, atol=1e-17)


def test_each_is_compared_with_another_library() -> None:
    assert {golden["class_name"] for golden in GOLDENS} == set(SCHEDULES) == set(schedules.OWN) - {"Formula"}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_last_rate_stays(name: str) -> None:
    schedule = schedules.from_config({"class_name": name, "config": SCHEDULES[name]})
    assert schedule.at(10**6) == schedule.at(10**9) < 0.021


def test_a_warm_up_before_cosine_decay_is_that_of_keras() -> None:
    ours = schedules.LinearWarmup(schedules.CosineDecay(**COSINE), warmup_steps=7, initial_learning_rate=0.05)
    own = {**COSINE, "initial_learning_rate": 0.05, "warmup_target": 0.2, "warmup_steps": 7}
    theirs = keras.optimizers.schedules.CosineDecay(**own)
    for step in range(45):
        np.testing.assert_allclose(ours.at(step), float(theirs(step)), rtol=2e-6)


def test_any_schedule_follows_a_warm_up() -> None:
    class Halves(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        def __call__(self, step: Any) -> Any:
            return 0.5 ** tf.cast(step, tf.float32)

        def get_config(self) -> dict[str, Any]:
            return {}

    line = [0.0, 0.5, 1.0, 0.5, 0.25]
    own = schedules.LinearWarmup(Halves(), 2)
    assert [own.at(step) for step in range(5)] == line
    assert [float(tf.function(own)(tf.constant(step))) for step in range(5)] == line
    constant = schedules.LinearWarmup(0.5, 2, 0.1)
    assert [constant.at(step) for step in (0, 1, 2, 9)] == pytest.approx([0.1, 0.3, 0.5, 0.5])
    twice = schedules.LinearWarmup(schedules.LinearWarmup(1.0, 2, 0.5), 5)
    assert [twice.at(step) for step in (0, 4, 5, 6, 7)] == pytest.approx([0.0, 0.4, 0.5, 0.75, 1.0])
    formula = schedules.Formula([["Step", "int64"], ["Cast", 0, "float32"], ["Const", "float32", 0.5], ["Pow", 2, 1]])
    assert [schedules.LinearWarmup(formula, 2).at(step) for step in range(5)] == line
    document = schedules.to_config(own)
    assert not schedules.is_known(document)
    with pytest.raises(HyperparameterError, match="the schedule 'Halves'"):
        schedules.from_config(document)


@covering(1, name=SCHEDULES, in_function=[False, True], on_mesh=[False, True])
def test_a_restart_is_bit_for_bit(name: str, in_function: bool, on_mesh: bool, mesh_2: Any, tmp_path: Any) -> None:
    from tensorflow.experimental import dtensor

    place = dtensor.Layout(["x"], mesh_2) if on_mesh else None
    gradients = np.random.default_rng(0).normal(size=(18, 8)).astype(np.float32)
    ends = []
    for restarts in (False, True):
        var = variable(np.ones(8), place, "w")
        optimizer = optim.Adam(schedules.from_config({"class_name": name, "config": SCHEDULES[name]}))
        for number, gradient in enumerate(gradients):
            if number == 7 and restarts:
                optim.save_checkpoint(tmp_path / "c", optimizer, [var])
                optimizer = optim.load_checkpoint(tmp_path / "c", [var])
                assert type(optimizer._learning_rate) is getattr(schedules, name)
            if number in (0, 7):
                optimizer.build([var])
                step = tf.function(optimizer.apply_gradients, autograph=False)
            (step if in_function else optimizer.apply_gradients)([(put(gradient, place, tf.float32), var)])
        ends.append(value_of(var))
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.quick(1)
def test_keras_saves_and_loads_it(name: str, tmp_path: Any) -> None:
    schedule = schedules.from_config({"class_name": name, "config": SCHEDULES[name]})
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile(optim.for_keras(optim.Adam(schedule), keras), "mse")
    x, y = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)
    model.fit(x, y, epochs=3, verbose=0)
    model.save(tmp_path / "m.keras")
    other = keras.models.load_model(tmp_path / "m.keras", custom_objects=optim.keras_objects(keras))
    assert float(other.optimizer.learning_rate) == pytest.approx(schedule.at(3))
    one, two = (m.fit(x, y, epochs=3, verbose=0).history["loss"] for m in (model, other))
    assert one == two


def _saved(schedule: Any, folder: Any) -> tuple[str, Any]:
    var = tf.Variable([1.0, 2.0], name="w")
    optimizer = optim.SGD(schedule, momentum=0.9)
    for _ in range(3):
        optimizer.apply_gradients([(tf.constant([1.0, -1.0]), var)])
    optim.save_checkpoint(folder / "saved", optimizer, [var])
    return str(folder / "saved"), var


def test_migration_writes_a_warm_up_as_keras_has_it(tmp_path: Any) -> None:
    cosine = schedules.CosineDecay(**COSINE)
    source, _ = _saved(schedules.LinearWarmup(cosine, 7, 0.05), tmp_path)
    theirs = {**COSINE, "initial_learning_rate": 0.05, "warmup_target": 0.2, "warmup_steps": 7}
    live = keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(**theirs), momentum=0.9)
    twin = keras.Variable([0.0, 0.0], name="w")
    live.build([twin])
    report = migrate.restore(source, live, [twin])
    assert not [reason for reason in report.reasons if "learning" in reason or "schedule" in reason]
    state = migrate.read(source)
    assert migrate.learning_rate(state, 3) == pytest.approx(0.05 + 0.15 * 3 / 7)


def test_migration_writes_files_of_keras_with_a_warm_up(tmp_path: Any) -> None:
    for name, schedule in (
        ("warm", schedules.LinearWarmup(schedules.CosineDecay(**COSINE), 7, 0.05)),
        ("cycle", schedules.OneCycle(0.1, 20)),
    ):
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        model.compile(optim.for_keras(optim.SGD(schedule, momentum=0.9), keras), "mse")
        model.fit(np.ones((4, 3), np.float32), np.ones((4, 1), np.float32), verbose=0)
        model.save(tmp_path / f"{name}.keras")
    written = tmp_path / "written.keras"
    report = migrate.migrate_checkpoint(str(tmp_path / "warm.keras"), str(written), to="keras")
    assert "LinearWarmup around CosineDecay" in " ".join(report.warnings)
    rate = keras.models.load_model(written).optimizer._learning_rate
    assert (type(rate), rate.warmup_target, rate.warmup_steps) == (keras.optimizers.schedules.CosineDecay, 0.2, 7)
    with pytest.raises(UnsupportedError, match="OneCycle, which is not a schedule of Keras"):
        migrate.migrate_checkpoint(str(tmp_path / "cycle.keras"), str(tmp_path / "c.keras"), to="keras")


@pytest.mark.parametrize("name", SCHEDULES)
def test_migration_compares_schedules(name: str, tmp_path: Any) -> None:
    """With a live optimizer of the same schedule, and with another one."""
    schedule = schedules.from_config({"class_name": name, "config": SCHEDULES[name]})
    source, _ = _saved(schedule, tmp_path)
    for other, fidelity in ((schedule, "exact"), (schedules.OneCycle(0.3, 50), "approximate")):
        var = tf.Variable([0.0, 0.0], name="w")
        live = optim.SGD(other, momentum=0.9)
        live.build([var])
        assert migrate.restore(source, live, [var]).fidelity == fidelity
    moved = str(tmp_path / "moved")
    assert migrate.migrate_checkpoint(source, moved).fidelity == "exact"
    assert migrate.verify(source, moved).ok


def test_migration_tries_transformations_of_optax(tmp_path: Any) -> None:
    optax = pytest.importorskip("optax")
    jnp = pytest.importorskip("jax.numpy")
    source, _ = _saved(schedules.WarmupStableDecay(0.25, 4, 8, 16), tmp_path)
    parts = [optax.linear_schedule(0.0, 0.25, 4), optax.constant_schedule(0.25)]
    for steps, fidelity in ((16, "exact"), (24, "approximate")):
        rate = optax.join_schedules([*parts, optax.linear_schedule(0.25, 0.0, steps)], [4, 12])
        params = {"w": jnp.zeros(2)}
        made = migrate.Optax(optax.chain(optax.scale_by_learning_rate(rate), optax.trace(0.9)), params)
        assert migrate.restore(source, made, {"w": "w"}).fidelity == fidelity


def test_a_class_of_a_program_with_the_same_name_is_its_own() -> None:
    from migrate.algorithms import rates

    document = {"class_name": "OneCycle", "config": {"max_lr": 0.1}}
    rate, _ = rates.read(document, "optimizer_v2")
    assert rates.is_own(rate)
    assert not rates.is_own(rates.read(schedules.to_config(schedules.OneCycle(0.1, 20)), "optimizer_v2")[0])


@pytest.mark.parametrize(
    ("name", "change", "culprit"),
    [
        ("LinearWarmup", {"warmup_steps": 0}, "warmup_steps"),
        ("LinearWarmup", {"schedule": "cosine"}, "schedule"),
        ("LinearWarmup", {"initial_learning_rate": -0.1}, "initial_learning_rate"),
        ("OneCycle", {"pct_start": 0.05}, "pct_start"),
        ("OneCycle", {"pct_start": 1.0}, "pct_start"),
        ("OneCycle", {"pct_start": 0.6, "three_phase": True}, "pct_start"),
        ("OneCycle", {"anneal_strategy": "cosine"}, "anneal_strategy"),
        ("OneCycle", {"three_phase": 1}, "three_phase"),
        ("WarmupStableDecay", {"decay": "log"}, "decay"),
        ("WarmupStableDecay", {"decay": "exponential"}, "end_learning_rate"),
        ("WarmupStableDecay", {"stable_steps": -1}, "stable_steps"),
        ("WarmupStableDecay", {"decay_steps": 0}, "decay_steps"),
    ],
)
def test_bad_arguments(name: str, change: dict[str, Any], culprit: str) -> None:
    with pytest.raises(HyperparameterError, match=culprit):
        getattr(schedules, name)(**{**SCHEDULES[name], **change})
