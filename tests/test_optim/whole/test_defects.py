"""The defects of `tf.keras.dtensor.experimental.optimizers` in TF 2.9, one test each: none may come back.

The reference is the DTensor optimizers of TensorFlow 2.9; numbers in the names only tell the defects apart.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.errors import GradientsError, NoGradientsError, UnknownVariableError, UnsupportedError
from optim.schedules import ExponentialDecay
from tests.helpers.dtensor_asserts import assert_dtensor_equal, value_of
from tests.test_optim.support import put, snapshot, variable

CLASSES = [optim.SGD, optim.Adam, optim.Adadelta]
every_class = pytest.mark.parametrize("cls", CLASSES)


@pytest.fixture
def sharded(mesh_2: Any) -> Any:
    """A float64 variable of eight ones, on axis x."""
    return variable(np.ones(8), dtensor.Layout(["x"], mesh_2), "w")


def _step(optimizer: Any, var: Any, gradient: Any = None) -> np.ndarray:
    gradient = np.full(var.shape, 2.0) if gradient is None else gradient
    optimizer.apply_gradients([(put(gradient, getattr(var, "layout", None), var.dtype), var)])
    return value_of(var)


@every_class
def test_01_option_objects_act_or_raise(cls: Any, sharded: Any) -> None:
    for name in ("gradients_clip_option", "ema_option"):
        with pytest.raises(ValueError, match=name):
            cls(**{name: "garbage"})
    optimizer = cls(0.5, gradients_clip_option={"clipvalue": 0.5}, ema_option=optim.EMAOption(True, 0.5))
    _step(optimizer, sharded)
    assert_dtensor_equal(optimizer.get_slot(sharded, "average"), (value_of(sharded) + 1) / 2, sharded.layout)


@every_class
def test_02_documented_keywords_exist(cls: Any) -> None:
    documented = {"clipnorm", "clipvalue", "global_clipnorm", "use_ema", "ema_momentum", "ema_overwrite_frequency"}
    assert documented | {"jit_compile"} <= set(inspect.signature(cls).parameters)


@every_class
def test_03_04_05_config_round_trip(cls: Any, mesh_2: Any) -> None:
    config = cls(0.25, name="mine", mesh=mesh_2, clipnorm=2.0, use_ema=True).get_config()
    kept = json.loads(json.dumps(config))
    again = cls.from_config(config)
    assert config == kept  # 5: not mutated
    assert (again.name, again.mesh, again.clipnorm, again.use_ema) == ("mine", mesh_2, 2.0, True)
    assert float(again.learning_rate) == 0.25


@every_class
def test_06_jit_compile_acts_or_raises(cls: Any, sharded: Any) -> None:
    assert cls().get_config()["jit_compile"] is None
    optimizer = cls(0.1, jit_compile=True)
    _step(optimizer, sharded)
    assert set(optimizer.executor_report().kernels.values()) == {"xla"}
    with pytest.raises(UnsupportedError, match="jit_compile"):
        _step(cls(0.1, jit_compile=True, executor="portable"), sharded)
    with pytest.raises(UnsupportedError, match="jit_compile"):
        tf.function(lambda: _traced_step(cls(0.1, jit_compile=True), sharded), autograph=False)()


def _traced_step(optimizer: Any, var: Any) -> None:
    optimizer.apply_gradients([(tf.ones_like(var), var)])


@every_class
def test_07_averages_move(cls: Any, sharded: Any) -> None:
    optimizer = cls(0.5, use_ema=True, ema_momentum=0.5)
    _step(optimizer, sharded)
    average = value_of(optimizer.get_slot(sharded, "average"))
    assert np.all(average != 1.0)
    np.testing.assert_allclose(average, (1 + value_of(sharded)) / 2, rtol=1e-15)


@every_class
def test_08_averages_belong_to_their_variables(cls: Any, mesh_2: Any) -> None:
    first = variable(np.ones(4), dtensor.Layout.replicated(mesh_2, 1), "first")
    second = variable(np.full(4, 5.0), dtensor.Layout(["x"], mesh_2), "second")
    optimizer = cls(0.5, use_ema=True, ema_momentum=0.0)
    optimizer.build([first, second])
    optimizer.apply_gradients([(put(np.ones(4), second.layout), second), (None, first)])
    optimizer.finalize_variable_values([second, first])
    np.testing.assert_array_equal(value_of(first), 1.0)
    assert np.all((value_of(second) < 5.0) & (value_of(second) > 4.0))


@every_class
def test_09_slots_are_laid_out_like_their_variables(cls: Any, mesh_2x2: Any) -> None:
    var = variable(np.ones((4, 6)), dtensor.Layout(["model", "batch"], mesh_2x2), "w")
    optimizer = cls(gradient_accumulation_steps=2, use_ema=True)
    optimizer.build([var])
    for slot in [name for name in optimizer.slot_names if name != "gathered"]:  # a scalar
        assert optimizer.get_slot(var, slot).layout == var.layout


@pytest.mark.parametrize("value", [np.arange(8.0), 3.0, tf.float64], ids=["array", "number", "tensor"])
@pytest.mark.parametrize("given", [True, False])
def test_10_initial_values_get_the_layout(value: Any, given: bool, sharded: Any, mesh_2: Any) -> None:
    value = tf.range(8, dtype=tf.float64) if value is tf.float64 else value
    optimizer = optim.Optimizer("test", mesh=mesh_2 if given else None)
    made = optimizer.add_variable_from_reference(sharded, "tmp", initial_value=value)
    assert_dtensor_equal(made, np.broadcast_to(np.asarray(value, np.float64), 8), sharded.layout)


def test_11_add_variable_is_on_the_mesh(mesh_2: Any) -> None:
    made = optim.Adam(mesh=mesh_2).add_variable([3, 2], tf.float64, "ones", "extra")
    assert_dtensor_equal(made, np.ones((3, 2)), dtensor.Layout.replicated(mesh_2, 2))
    assert not made.trainable


def test_12_add_variable_from_reference_takes_a_shape(sharded: Any) -> None:
    optimizer = optim.Optimizer("test")
    made = optimizer.add_variable_from_reference(sharded, "tmp", [3], np.array([1.0, 2.0, 3.0]))
    assert_dtensor_equal(made, [1.0, 2.0, 3.0], dtensor.Layout.replicated(sharded.layout.mesh, 1))
    assert list(inspect.signature(optimizer.add_variable_from_reference).parameters) == [
        "model_variable",
        "variable_name",
        "shape",
        "initial_value",
    ]


@every_class
def test_13_no_state_is_trainable(cls: Any, sharded: Any, mesh_2: Any) -> None:
    optimizer = cls(mesh=mesh_2)
    _step(optimizer, sharded)
    assert list(optimizer.trainable_variables) == []
    assert not any(v.trainable for v in optimizer.variables)

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights, self.optimizer = sharded, optimizer

    assert [id(v) for v in Model().trainable_variables] == [id(sharded)]


@pytest.mark.parametrize("shard", ["x", "unsharded", None])
@every_class
def test_16_17_repeated_indices_on_any_layout(cls: Any, shard: str | None, mesh_2: Any) -> None:
    layout = None if shard is None else dtensor.Layout([shard, "unsharded"], mesh_2)
    whole = None if shard is None else dtensor.Layout.replicated(mesh_2, 2)
    indices = tf.constant([3, 1, 3, 3])
    if layout is not None:
        indices = dtensor.copy_to_mesh(indices, dtensor.Layout.replicated(mesh_2, 1))
    rows = np.arange(8.0).reshape(4, 2) - 3.5
    dense = np.zeros((6, 2))
    np.add.at(dense, [3, 1, 3, 3], rows)
    one, two = (variable(np.ones((6, 2)), layout, name) for name in ("one", "two"))
    sparse, plain = cls(0.5), cls(0.5)
    for _ in range(2):
        sparse.apply_gradients([(tf.IndexedSlices(put(rows, whole), indices), one)])
        plain.apply_gradients([(put(dense, layout), two)])
    np.testing.assert_allclose(value_of(one), value_of(two), rtol=1e-14)


@every_class
def test_19_a_gradient_may_appear_late(cls: Any, mesh_2: Any) -> None:
    early, late = (variable(np.ones(4), dtensor.Layout(["x"], mesh_2), name) for name in ("early", "late"))
    optimizer = cls(0.5)
    gradient = put(np.ones(4), early.layout)
    optimizer.apply_gradients([(gradient, early), (None, late)])
    np.testing.assert_array_equal(value_of(late), 1.0)
    optimizer.apply_gradients([(gradient, early), (gradient, late)])
    assert np.all(value_of(late) < 1.0)


@every_class
def test_20_nothing_to_do_and_no_gradients(cls: Any, sharded: Any) -> None:
    optimizer = cls()
    assert optimizer.apply_gradients([]) is None
    assert optimizer.apply_gradients(zip([], [], strict=True)) is None
    assert int(optimizer.iterations.numpy()) == 0
    with pytest.raises(NoGradientsError, match="w"):
        optimizer.apply_gradients([(None, sharded)])


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
@pytest.mark.parametrize("mode", ["local", "portable", "function", "jit"])
def test_21_adam_learns_in_half_precision(dtype: Any, mode: str, mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    var = variable(np.ones(4), layout, "w", dtype)
    optimizer = optim.Adam(
        0.1, jit_compile=mode == "jit", executor={"function": "auto", "jit": "local"}.get(mode, mode)
    )
    gradient = put(np.full(4, 0.5), layout, dtype)
    step = lambda g: optimizer.apply_gradients([(g, var)])  # noqa: E731
    step = tf.function(step, autograph=False) if mode == "function" else step
    for _ in range(5):
        step(gradient)
    # Five steps of the full rate down: 1 − 5·0.1, up to five roundings of the variable.
    spacing = 2.0**-8 if dtype == tf.bfloat16 else 2.0**-11
    assert_dtensor_equal(var, np.full(4, 0.5), layout, dtype=dtype, atol=5 * spacing)
    assert all(optimizer.get_slot(var, slot).dtype == dtype for slot in ("m", "v"))


@pytest.mark.parametrize("mode", ["local", "portable", "function"])
def test_22_float64_hyperparameters_stay_float64(mode: str, devices: list[str]) -> None:
    var = tf.Variable([1.0], dtype=tf.float64, name="w")
    optimizer = optim.Adam(
        learning_rate=lambda: 0.1,
        beta_1=lambda: 0.9,
        beta_2=lambda: 0.999,
        executor="auto" if mode == "function" else mode,
    )
    gradient = tf.constant([1.0], tf.float64)
    step = tf.function(optimizer.apply_gradients, autograph=False) if mode == "function" else optimizer.apply_gradients
    step([(gradient, var)])
    root = np.sqrt(1 - 0.999)
    expected = 1 - 0.1 * root / (1 - 0.9) * (1 - 0.9) / (root + 1e-7)
    assert_dtensor_equal(var, [expected], None, rtol=1e-15)


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_23_rates_are_float64(mode: str, mesh_2: Any) -> None:
    """To steps; programs see them in float32, as Keras's."""
    optimizer = optim.SGD(0.1, mesh=mesh_2)
    assert optimizer.learning_rate.dtype == tf.float32
    assert float(optimizer.learning_rate) == np.float32(0.1)
    assert optimizer.get_config()["learning_rate"] == 0.1
    var = variable(np.zeros(2), dtensor.Layout(["x"], mesh_2), "w")
    scheduled = optim.SGD(ExponentialDecay(0.1, 10, 0.3), mesh=mesh_2)
    step = scheduled.apply_gradients
    step = tf.function(step, autograph=False) if mode == "function" else step
    for _ in range(2):
        step([(put(np.ones(2), var.layout), var)])
    assert_dtensor_equal(var, np.full(2, -0.1 - 0.1 * 0.3**0.1), var.layout, rtol=1e-15)


def test_24_callables_work_and_are_asked_every_step(sharded: Any) -> None:
    asked: list[str] = []

    def tell(name: str, value: float) -> Any:
        return lambda: (asked.append(name), value)[1]

    optimizer = optim.Adam(tell("rate", 0.1), beta_1=tell("beta_1", 0.8), beta_2=tell("beta_2", 0.9))
    _step(optimizer, sharded)
    _step(optimizer, sharded)
    assert asked.count("rate") == asked.count("beta_1") == asked.count("beta_2") == 2
    assert float(optimizer.learning_rate) == 0.1


def test_25_sgd_arguments() -> None:
    signature = inspect.signature(optim.SGD)
    assert "amsgrad" not in signature.parameters
    assert signature.parameters["learning_rate"].default == 0.01
    with pytest.warns(UserWarning, match="nesterov"):
        optim.SGD(nesterov=True)


def test_26_clipvalue_works_beside_a_norm(sharded: Any) -> None:
    optimizer = optim.SGD(1.0, clipvalue=0.5, clipnorm=1.0)
    gradient = np.array([4.0, -4.0, 0, 0, 0, 0, 0, 0.5])
    clipped = np.clip(gradient, -0.5, 0.5)
    _step(optimizer, sharded, gradient)
    np.testing.assert_allclose(value_of(sharded), 1 - clipped / max(1.0, np.linalg.norm(clipped)), rtol=1e-15)
    with pytest.raises(ValueError, match=r"clipnorm.*global_clipnorm"):
        optim.SGD(clipnorm=1.0, global_clipnorm=1.0)


def test_27_learning_rate_can_be_set(sharded: Any) -> None:
    optimizer = optim.SGD(0.5)
    optimizer.learning_rate = 0.25
    assert float(optimizer.learning_rate) == 0.25
    optimizer.learning_rate = ExponentialDecay(0.125, 1, 0.5)
    assert float(optimizer.learning_rate) == 0.125
    _step(optimizer, sharded)
    assert float(optimizer.learning_rate) == 0.0625
    optimizer.learning_rate = ExponentialDecay(1.0, 1, 1.0)
    assert float(optimizer.learning_rate) == 1.0
    with pytest.raises(TypeError, match="LearningRateSchedule"):
        optimizer.learning_rate = 0.5
    for bad in (float("nan"), -1.0):
        with pytest.raises(ValueError, match="learning_rate"):
            optim.SGD(0.5).learning_rate = bad


def test_28_constraints_names_and_variables(devices: list[str]) -> None:
    var = tf.Variable([1.0, -1.0], name="w", constraint=lambda value: tf.maximum(value, 0.0))
    optimizer = optim.SGD(0.5, momentum=0.9, name="mine")
    assert optimizer.apply_gradients([(tf.constant([1.0, 1.0]), var)]) is None
    np.testing.assert_array_equal(var.numpy(), [0.5, 0.0])
    assert optimizer.name == "mine"
    assert [v.shape.rank for v in optimizer.variables] == [0, 0, 1]

    @tf.function(autograph=False)
    def step() -> None:
        optimizer.apply_gradients([(tf.constant([2.0, 1.0]), var)])

    step()
    assert np.all(var.numpy() >= 0)


def test_29_an_eager_step_issues_few_ops_per_variable(devices: list[str]) -> None:
    """Scalars are computed once per step: more variables add one kernel each, and nothing else."""
    from tensorflow.python.framework import op_callbacks

    def ops_of(count: int) -> int:
        variables = [tf.Variable(tf.ones(3), name=f"v{i}") for i in range(count)]
        gradients = [tf.ones(3) for _ in variables]
        optimizer = optim.Adam(0.1)
        for _ in range(2):
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        seen: list[str] = []

        def note(op_type: str, *_: Any, **__: Any) -> None:
            seen.append(op_type)

        op_callbacks.add_op_callback(note)
        try:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        finally:
            op_callbacks.remove_op_callback(note)
        assert len(seen) >= count
        return len(seen)

    assert ops_of(12) - ops_of(2) == 10


@every_class
def test_30_an_unknown_variable_changes_nothing(cls: Any, sharded: Any) -> None:
    optimizer = cls(0.5)
    _step(optimizer, sharded)
    stranger = variable(np.ones(8), sharded.layout, "stranger")
    before = snapshot([sharded, stranger, *optimizer.variables])
    gradient = put(np.ones(8), sharded.layout)
    with pytest.raises(UnknownVariableError, match="stranger"):
        optimizer.apply_gradients([(gradient, sharded), (gradient, stranger)])
    assert snapshot([sharded, stranger, *optimizer.variables]) == before
    optimizer.build([stranger])
    optimizer.apply_gradients([(gradient, sharded), (gradient, stranger)])
    assert int(optimizer.iterations.numpy()) == 2


@every_class
def test_31_update_step_of_an_unknown_variable_raises(cls: Any, sharded: Any) -> None:
    optimizer = cls()
    with pytest.raises(UnknownVariableError, match="w"):
        optimizer.update_step(put(np.ones(8), sharded.layout), sharded)
    with pytest.raises(GradientsError, match="variable"):
        optimizer.update_step(put(np.ones(8), sharded.layout), "w")


@every_class
def test_33_one_counter_and_one_rate(cls: Any, mesh_2: Any) -> None:
    optimizer = cls(0.125, mesh=mesh_2)
    assert len(optimizer.variables) == 2
    assert not hasattr(optimizer, "_distribution_strategy")
    assert optimizer.iterations.layout == optimizer.learning_rate.layout == dtensor.Layout.replicated(mesh_2, 0)
