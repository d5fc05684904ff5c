"""Schedules of our own, of Keras 3 and of tf_keras are one and the same to an optimizer."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.experimental import dtensor

import optim
from optim import schedules
from optim.errors import HyperparameterError
from tests.helpers.breadth import covering
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.support import put, variable

ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "ExponentialDecay": [
        {"initial_learning_rate": 0.3, "decay_steps": 4, "decay_rate": 0.6},
        {"initial_learning_rate": 0.3, "decay_steps": 4, "decay_rate": 0.6, "staircase": True},
    ],
    "InverseTimeDecay": [
        {"initial_learning_rate": 0.3, "decay_steps": 4, "decay_rate": 0.6},
        {"initial_learning_rate": 0.3, "decay_steps": 4, "decay_rate": 0.6, "staircase": True},
    ],
    "PiecewiseConstantDecay": [{"boundaries": [3, 7], "values": [0.3, 0.2, 0.05]}],
    "PolynomialDecay": [
        {"initial_learning_rate": 0.3, "decay_steps": 6, "end_learning_rate": 0.02, "power": 1.5},
        {"initial_learning_rate": 0.3, "decay_steps": 6, "end_learning_rate": 0.02, "power": 0.5, "cycle": True},
    ],
    "CosineDecay": [
        {"initial_learning_rate": 0.3, "decay_steps": 9, "alpha": 0.1},
        {"initial_learning_rate": 0.1, "decay_steps": 6, "alpha": 0.1, "warmup_target": 0.4, "warmup_steps": 4},
    ],
    "CosineDecayRestarts": [
        {"initial_learning_rate": 0.3, "first_decay_steps": 3, "t_mul": 2.0, "m_mul": 0.8, "alpha": 0.05},
        {"initial_learning_rate": 0.3, "first_decay_steps": 4, "t_mul": 1.0, "m_mul": 0.8},
    ],
}
CASES = [(name, arguments) for name, cases in ARGUMENTS.items() for arguments in cases]


def test_every_stock_schedule_is_here() -> None:
    assert set(ARGUMENTS) == set(schedules.STOCK)


@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_the_same_numbers_as_keras(name: str, arguments: dict[str, Any]) -> None:
    """To float32, in which Keras computes; steps at a float32 boundary of a period are left out (2.9999998 / 3)."""
    own = schedules.STOCK[name](**arguments)
    for module in (keras.optimizers.schedules, tf_keras.optimizers.schedules):
        theirs = getattr(module, name)(**arguments)
        for step in range(22):
            if name == "CosineDecayRestarts" and step in (3, 4, 8, 9, 12, 16, 20, 21):
                continue
            ours = own(tf.constant(step, tf.int64))
            assert ours.dtype == tf.float64
            assert own.at(step) == pytest.approx(float(ours), rel=1e-12)
            np.testing.assert_allclose(
                float(ours), float(theirs(step)), rtol=3e-6, atol=1e-7, err_msg=f"{module} {step}"
            )


KERAS = (keras, tf_keras)
LONGER = [
    ("CosineDecay", {"initial_learning_rate": 0.05, "decay_steps": 60}),
    ("CosineDecay", {"initial_learning_rate": 0.013, "decay_steps": 53, "alpha": 0.03, "warmup_target": 0.17,
                     "warmup_steps": 7}),
    ("CosineDecay", {"initial_learning_rate": 0.05, "decay_steps": 41, "warmup_target": 0.1}),
    ("CosineDecayRestarts", {"initial_learning_rate": 0.05, "first_decay_steps": 17, "t_mul": 1.5, "alpha": 0.07}),
    ("PolynomialDecay", {"initial_learning_rate": 0.05, "decay_steps": 37}),
    ("PolynomialDecay", {"initial_learning_rate": 0.05, "decay_steps": 37, "power": 2.0}),
    ("ExponentialDecay", {"initial_learning_rate": 0.05, "decay_steps": 37, "decay_rate": 0.93}),
    ("InverseTimeDecay", {"initial_learning_rate": 0.05, "decay_steps": 37, "decay_rate": 0.93}),
]  # fmt: skip


@pytest.mark.breadth
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("module", KERAS, ids=["keras3", "tf_keras"])
def test_the_same_bits_as_keras_once_restored(module: Any, in_function: bool) -> None:
    """Also where TensorFlow optimizes a function: it divides by what is no constant, and multiplies else."""
    for name, arguments in [*CASES, *LONGER]:
        theirs = getattr(module.optimizers.schedules, name)(**arguments)
        document = json.loads(json.dumps(schedules.to_config(theirs)))
        ours = schedules.from_config(document)
        assert schedules.to_config(ours) == document
        one, two = (tf.function(each) if in_function else each for each in (ours, theirs))
        steps = [tf.constant(step, tf.int64) for step in (*range(60), 10**8 + 1)]
        np.testing.assert_array_equal([one(s) for s in steps], [two(s) for s in steps], err_msg=f"{name} {arguments}")


@covering(1, name=ARGUMENTS, module=KERAS, in_function=[False, True], on_mesh=[False, True])
@pytest.mark.quick(2)
def test_a_restart_is_bit_for_bit(
    name: str, module: Any, in_function: bool, on_mesh: bool, mesh_2: Any, tmp_path: Any
) -> None:
    place = dtensor.Layout(["x"], mesh_2) if on_mesh else None
    gradients = np.random.default_rng(0).normal(size=(24, 8)).astype(np.float32)
    ends = []
    for restarts in (False, True):
        var = variable(np.ones(8), place, "w")
        optimizer = optim.AdamW(getattr(module.optimizers.schedules, name)(**ARGUMENTS[name][-1]))
        for number, gradient in enumerate(gradients):
            if number == 11 and restarts:
                optim.save_checkpoint(tmp_path / "c", optimizer, [var])
                optimizer = optim.load_checkpoint(tmp_path / "c", [var])
            if number in (0, 11):
                optimizer.build([var])
                step = tf.function(optimizer.apply_gradients, autograph=False)
            (step if in_function else optimizer.apply_gradients)([(put(gradient, place, tf.float32), var)])
        ends.append(value_of(var))
    np.testing.assert_array_equal(*ends)


@covering(1, name=ARGUMENTS, layout=["mesh", "plain"], mode=["function", "eager"])
def test_one_training_whoever_wrote_the_schedule(name: str, layout: str, mode: str, mesh_2: Any) -> None:
    arguments = ARGUMENTS[name][-1]
    place = None if layout == "plain" else dtensor.Layout(["x"], mesh_2)
    ends = []
    for module in (optim.schedules, keras.optimizers.schedules, tf_keras.optimizers.schedules):
        schedule = getattr(module, name)(**arguments)
        var = variable(np.ones(4), place, "w")
        optimizer = optim.SGD(schedule, momentum=0.9)
        step = optimizer.apply_gradients
        step = tf.function(step, autograph=False) if mode == "function" else step
        gradient = put(np.arange(4.0), place)
        for _ in range(3):
            step([(gradient, var)])
        ends.append(value_of(var))
        assert float(optimizer.learning_rate) == pytest.approx(float(schedule(3)), rel=1e-6)
        config = json.loads(json.dumps(optimizer.get_config()))
        again = optim.SGD.from_config(config)
        assert float(again.learning_rate) == pytest.approx(float(schedule(0)), rel=1e-6)
        assert type(again._learning_rate) is getattr(schedules, name)
    np.testing.assert_allclose(ends[1], ends[0], rtol=3e-6)
    np.testing.assert_allclose(ends[2], ends[0], rtol=3e-6)


def test_a_schedule_of_ones_own(devices: list[str]) -> None:
    class Halves(schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            return 0.5 ** tf.cast(step, tf.float64)

        def get_config(self) -> dict[str, Any]:
            return {}

    var = tf.Variable([0.0], dtype=tf.float64)
    optimizer = optim.SGD(Halves())
    for _ in range(3):
        optimizer.apply_gradients([(tf.ones(1, tf.float64), var)])
    np.testing.assert_array_equal(var.numpy(), [-1.75])
    config = optimizer.get_config()
    with pytest.raises(HyperparameterError, match="Halves"):
        optim.SGD.from_config(config)
    assert float(optim.SGD.from_config({**config, "learning_rate": Halves()}).learning_rate) == 1.0


def test_a_schedule_of_ones_own_that_is_called_as_one_of_keras(devices: list[str]) -> None:
    class CosineDecay(keras.optimizers.schedules.CosineDecay):  # type: ignore[misc]
        def __call__(self, step: Any) -> Any:
            return 2.0 * super().__call__(step)

    config = optim.SGD(CosineDecay(0.1, 10)).get_config()
    with pytest.raises(HyperparameterError, match="CosineDecay"):
        optim.SGD.from_config(config)


def test_a_schedule_that_goes_bad_changes_nothing(devices: list[str]) -> None:
    var = tf.Variable([1.0])
    optimizer = optim.SGD(schedules.PolynomialDecay(0.1, 2, end_learning_rate=-0.1))
    optimizer.apply_gradients([(tf.ones(1), var)])
    optimizer.apply_gradients([(tf.ones(1), var)])
    before = var.numpy().tobytes()
    with pytest.raises(HyperparameterError, match=r"learning_rate.*iteration 2"):
        optimizer.apply_gradients([(tf.ones(1), var)])
    assert var.numpy().tobytes() == before


@pytest.mark.parametrize(
    ("name", "arguments", "culprit"),
    [
        ("ExponentialDecay", {"initial_learning_rate": 0.1, "decay_steps": 0, "decay_rate": 0.5}, "decay_steps"),
        ("InverseTimeDecay", {"initial_learning_rate": float("nan"), "decay_steps": 1, "decay_rate": 0.5}, "initial"),
        ("PiecewiseConstantDecay", {"boundaries": [1], "values": [0.1]}, "values"),
        ("PiecewiseConstantDecay", {"boundaries": [8, 3], "values": [0.1, 0.2, 0.3]}, "ascending"),
        ("CosineDecay", {"initial_learning_rate": "0.1", "decay_steps": 3}, "initial_learning_rate"),
    ],
)
def test_bad_arguments(name: str, arguments: dict[str, Any], culprit: str) -> None:
    with pytest.raises(HyperparameterError, match=culprit):
        schedules.STOCK[name](**arguments)


HALVES = [["Step", "int64"], ["Cast", 0, "float32"], ["Const", "float32", 0.5], ["Pow", 2, 1]]


@covering(1, layout=["mesh", "plain"], mode=["function", "eager"])
def test_a_formula_is_computed_op_by_op(layout: str, mode: str, mesh_2: Any) -> None:
    """Each rate is half of the one before, in float32 as its ops say."""
    place = None if layout == "plain" else dtensor.Layout(["x"], mesh_2)
    var = variable(np.zeros(4), place, "w")
    optimizer = optim.SGD.from_config(
        json.loads(json.dumps(optim.SGD(schedules.Formula(HALVES)).get_config() | {"mesh": None}))
    )
    step = optimizer.apply_gradients
    step = tf.function(step, autograph=False) if mode == "function" else step
    for _ in range(3):
        step([(put(np.ones(4), place), var)])
    np.testing.assert_array_equal(value_of(var), np.full(4, -1.75))
    assert optimizer.learning_rate.numpy() == np.float32(0.125)


@pytest.mark.parametrize(
    ("operations", "culprit"),
    [
        ([], "list index"),
        ([["Const", "float32", [1.0, 2.0]]], "one number"),
        ([["Const", "int32", 1]], "one number"),
        ([["Const", "string", "a"]], "'string' is not one of"),
        ([["ReadFile", 0]], "ReadFile"),
        ([["Const", "float32", 1.0], ["Mul", 0, 1]], "list index"),
        ([["Const", "float32", 1.0], ["Mul", 0]], "shorter"),
        ([["Step", "int64"], ["Const", "float32", 1.0], ["Mul", 0, 1]], "cannot be computed"),
    ],
)
def test_operations_that_are_no_formula(operations: list[Any], culprit: str) -> None:
    with pytest.raises(HyperparameterError, match=culprit):
        schedules.Formula(operations)


def test_schedules_count_real_steps(devices: list[str]) -> None:
    """Under accumulation, the rate goes by `iterations`, not by calls."""
    var = tf.Variable([0.0], dtype=tf.float64)
    optimizer = optim.SGD(schedules.PiecewiseConstantDecay([0], [1.0, 0.25]), gradient_accumulation_steps=2)
    for _ in range(4):
        optimizer.apply_gradients([(tf.ones(1, tf.float64), var)])
    np.testing.assert_array_equal(var.numpy(), [-1.25])


@pytest.mark.parametrize("name", sorted(set(schedules.STOCK) - {"PiecewiseConstantDecay"}))
def test_a_schedule_starts_from_the_rate_that_an_optimizer_has(name: str) -> None:
    optimizer = optim.SGD(learning_rate=0.5)
    schedule = schedules.STOCK[name](**{**ARGUMENTS[name][0], "initial_learning_rate": optimizer.learning_rate})
    optimizer.learning_rate = schedule
    assert float(optimizer.learning_rate) == 0.5
    assert json.loads(json.dumps(schedule.get_config()))["initial_learning_rate"] == 0.5
    assert len(optimizer.variables) == 1, "the constant rate is no longer state"
    with pytest.raises(HyperparameterError, match="initial_learning_rate"):
        schedules.STOCK[name](**{**ARGUMENTS[name][0], "initial_learning_rate": tf.constant([0.5])})
