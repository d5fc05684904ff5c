"""Variables and models of Keras 3 and of tf_keras."""

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
from tests.helpers.dtensor_asserts import value_of
from tests.reference.adam import Adam
from tests.reference.common import Options, Training
from tests.test_optim.support import put

INPUTS = np.linspace(-1, 1, 24).reshape(8, 3).astype(np.float32)
TARGETS = np.linspace(1, -1, 16).reshape(8, 2).astype(np.float32)


def _model(module: Any) -> Any:
    model = module.Sequential([module.layers.Input((3,)), module.layers.Dense(2, name="dense")])
    model.layers[-1].set_weights([np.linspace(-1, 1, 6).reshape(3, 2), np.zeros(2)])
    return model


def _reference(options: Options) -> Training:
    start = {"kernel": np.linspace(-1, 1, 6).reshape(3, 2).astype(np.float32), "bias": np.zeros(2)}
    reference = Training(Adam(), lambda _: 0.1, start, options)
    for _ in range(4):
        error = INPUTS @ reference.values["kernel"] + reference.values["bias"] - TARGETS
        scaled = 2 * error / error.size
        reference.apply({"kernel": INPUTS.T @ scaled, "bias": scaled.sum(0)})
    return reference


@pytest.mark.parametrize("mode", ["local", "portable", "function"])
@pytest.mark.parametrize("module", [keras, tf_keras], ids=["keras3", "tf_keras"])
def test_a_model_trains(module: Any, mode: str, devices: list[str]) -> None:
    """Within 1e-4 of the reference: models are float32, and the fused kernel forms 1 − β₂ in it."""
    options = {"weight_decay": 0.01, "use_ema": True, "ema_momentum": 0.5, "global_clipnorm": 1.0}
    model = _model(module)
    optimizer = optim.Adam(0.1, executor="auto" if mode == "function" else mode, **options)

    def train() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(INPUTS) - TARGETS))
        weights = model.trainable_variables
        gradients = tape.gradient(loss, [getattr(w, "value", w) if module is keras else w for w in weights])
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    step = tf.function(train, autograph=False) if mode == "function" else train
    for _ in range(4):
        step()
    reference = _reference(Options(**options))
    for found, expected in zip(model.get_weights(), reference.values.values(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    kernel = model.trainable_variables[0]
    np.testing.assert_allclose(
        optimizer.get_slot(kernel, "average").numpy(), reference.averages["kernel"], rtol=1e-4, atol=1e-5
    )
    optimizer.finalize_variable_values(model.trainable_variables)
    np.testing.assert_allclose(model.get_weights()[0], reference.averages["kernel"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("module", [keras, tf_keras], ids=["keras3", "tf_keras"])
def test_minimize_and_checkpoint_a_model(module: Any, devices: list[str], tmp_path: Any) -> None:
    model = _model(module)
    optimizer = optim.SGD(0.1, momentum=0.9, weight_decay=0.1, weight_decay_exclude=["bias"])
    loss = lambda: tf.reduce_mean(tf.square(model(INPUTS) - TARGETS))  # noqa: E731
    before = float(loss())
    for _ in range(5):
        optimizer.minimize(loss, model.trainable_variables)
    assert float(loss()) < before / 2
    named = {getattr(v, "path", v.name): v for v in model.trainable_variables}
    optim.save_checkpoint(tmp_path / "c", optimizer, named)
    assert json.dumps(optimizer.get_config())
    again = _model(module)
    resumed = optim.load_checkpoint(tmp_path / "c", dict(zip(named, again.trainable_variables, strict=True)))
    for m, o in ((model, optimizer), (again, resumed)):
        o.minimize(lambda m=m: tf.reduce_mean(tf.square(m(INPUTS) - TARGETS)), m.trainable_variables)
    for one, two in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_keras_3_variable_keeps_its_constraint_and_path(devices: list[str]) -> None:
    var = keras.Variable(np.array([1.0, -1.0]), name="w", dtype="float32")
    var.constraint = keras.constraints.NonNeg()
    optimizer = optim.SGD(0.5, momentum=0.9)
    optimizer.apply_gradients([(tf.constant([1.0, 1.0]), var)])
    np.testing.assert_array_equal(var.numpy(), [0.5, 0.0])
    assert optimizer.get_slot(var, "m").shape == (2,)


def _gathered_under_a_constraint(optimizer: Any, mode: str) -> list[np.ndarray]:
    """The values of a variable after each of four calls; it begins outside of its constraint."""
    var = keras.Variable(np.array([3.0, -4.0]), name="w", dtype="float32")
    var.constraint = keras.constraints.UnitNorm(axis=0)
    optimizer.build([var])

    def step() -> None:
        optimizer.apply_gradients([(tf.stack([2.0 * var[1], 1.0]), var)])

    call = step if mode == "eager" else tf.function(step)
    return [(call(), np.array(var.numpy()))[1] for _ in range(4)]


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_a_constraint_holds_after_calls_that_only_gather(mode: str, devices: list[str]) -> None:
    want, got = (
        _gathered_under_a_constraint(cls(0.5, gradient_accumulation_steps=2), mode)
        for cls in (keras.optimizers.SGD, optim.SGD)
    )
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_allclose(got[0], [0.6, -0.8], rtol=1e-6)


def test_mixed_precision_variables_of_tf_keras(devices: list[str]) -> None:
    model = tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(3,), dtype="mixed_float16")])
    optimizer = optim.Adam(0.1)
    start = [np.array(w) for w in model.get_weights()]
    optimizer.apply_gradients([(tf.ones(v.shape, tf.float32), v) for v in model.trainable_variables])
    for before, after in zip(start, model.get_weights(), strict=True):
        np.testing.assert_allclose(before - after, 0.1, rtol=1e-4)


def test_a_tf_keras_dtensor_model(mesh_2x2: Any) -> None:
    layouts = {"kernel": dtensor.Layout(["unsharded", "model"], mesh_2x2), "bias": dtensor.Layout(["model"], mesh_2x2)}
    tf_keras.utils.set_random_seed(1)
    layer = tf_keras.layers.Dense(
        2,
        kernel_layout=layouts["kernel"],
        bias_layout=layouts["bias"],
        kernel_initializer=tf_keras.initializers.Zeros(),
    )
    rows = dtensor.Layout(["batch", "unsharded"], mesh_2x2)
    x, y = put(INPUTS, rows, tf.float32), put(TARGETS, rows, tf.float32)
    layer.build((8, 3))
    optimizer = optim.Adam(0.1, mesh=mesh_2x2)

    @tf.function
    def train(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, layer.kernel) + layer.bias - y))
        weights = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    train(x, y)
    assert optimizer.get_slot(layer.kernel, "m").layout == layouts["kernel"]
    error = -TARGETS
    gradient = INPUTS.T @ (2 * error / error.size)
    np.testing.assert_allclose(value_of(layer.kernel), -0.1 * np.sign(gradient), rtol=1e-3)


def test_a_keras_2_config_is_understood(devices: list[str]) -> None:
    """What tf_keras wrote for the same optimizer configures ours, where the options exist in both."""
    theirs = tf_keras.optimizers.Adam(0.25, beta_1=0.8, clipnorm=1.5, weight_decay=0.125).get_config()
    for key in ("is_legacy_optimizer", "jit_compile"):
        theirs.pop(key)
    ours = optim.Adam.from_config(theirs)
    assert (ours.beta_1, ours.clipnorm, ours.weight_decay) == (pytest.approx(0.8), 1.5, 0.125)
    assert float(ours.learning_rate) == 0.25
