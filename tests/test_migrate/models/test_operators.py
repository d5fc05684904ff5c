"""TensorFlow's functions between the layers of a functional model, on their way into Keras 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.models import operators
from optim.errors import UnsupportedError
from tests.helpers.keras_releases import loss_of_batch

ALIASES = {"math.divide", "nn.sigmoid", "nn.softplus", "nn.swish", "squeeze", "transpose"}
"""Names that tf.keras has had for functions whose newer names are in `_functions`."""


def _functions(tf: Any, x: Any, a: Any) -> list[Any]:
    """Every function of `operators.FUNCTIONS`, as people write them."""
    cube = tf.reshape(a, (-1, 3, 2))
    positive = tf.math.softplus(a) + 0.5
    return [
        *(a + x, 1.0 - a, tf.constant([1.0, 2, 3, 4, 5, 6]) + a, a * 2, x * a, a / 3.0, tf.divide(a, positive)),
        *(positive**2, tf.pow(positive, a), tf.maximum(a, 0.1), tf.minimum(a, x), tf.add(a, x), tf.subtract(a, x)),
        *(-a, abs(a), tf.exp(a), tf.math.log(positive), tf.sqrt(positive), tf.square(a), tf.sin(a), tf.cos(a)),
        *(tf.tanh(a), tf.math.rsqrt(positive), tf.sigmoid(a), tf.nn.softplus(a), tf.nn.silu(a), tf.nn.relu(a)),
        *(tf.nn.relu6(a), tf.nn.elu(a), tf.nn.selu(a), tf.nn.gelu(a), tf.nn.gelu(a, approximate=True)),
        *(tf.nn.leaky_relu(a), tf.nn.leaky_relu(a, alpha=0.3), tf.nn.softmax(a), tf.nn.softmax(cube, axis=1)),
        *(tf.reduce_mean(cube, axis=[1, 2]), tf.reduce_sum(a, 1, keepdims=True), tf.reduce_max(cube, -1)),
        *(tf.reduce_min(cube, axis=1), tf.reduce_prod(a, 1), tf.expand_dims(a, -1)),
        *(tf.squeeze(tf.expand_dims(a, 1), axis=1), tf.transpose(cube, [0, 2, 1]), tf.concat([a, x], axis=-1)),
        *(tf.stack([a, x, a], axis=1), tf.stack([a, x])[0], tf.clip_by_value(a, -0.2, 0.3)),
        *(
            tf.matmul(cube, tf.transpose(cube, perm=[0, 2, 1])),
            a[:, 1:3],
            cube[:, 0],
            cube[:, ::2, tf.newaxis],
            a[:, -1],
        ),
        tf.cast(tf.reduce_any(tf.math.logical_or(tf.not_equal(a, x), tf.not_equal(a, 0.0)), axis=1), tf.float32),
        *(tf.zeros_like(a) + x, tf.ones_like(a) * x),
    ]


@pytest.mark.breadth
@pytest.mark.parametrize("suffix", [".h5", pytest.param(".keras", marks=pytest.mark.breadth)])
@pytest.mark.usefixtures("loaded_here")
def test_functions_are_the_same_in_keras_3(suffix: str, tmp_path: Path) -> None:
    import keras
    import tensorflow as tf
    import tf_keras

    inputs = tf_keras.Input((6,))
    model = tf_keras.Model(inputs, _functions(tf, inputs, tf_keras.layers.Dense(6)(inputs)))
    used = {layer.get_config().get("function") for layer in model.layers} - {None}
    assert used == operators.FUNCTIONS.keys() - ALIASES
    classes = tf_keras.optimizers.legacy if suffix == ".h5" else tf_keras.optimizers
    model.compile(classes.SGD(0.01, momentum=0.9), "mse", run_eagerly=True)
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    targets = [np.zeros(end.shape, np.float32) for end in model(x)]
    model.train_on_batch(x, targets)
    source, target = tmp_path / f"source{suffix}", tmp_path / "target.keras"
    model.save(source)
    assert migrate.migrate_checkpoint(source, target, to="keras").fidelity == "exact"
    assert migrate.verify(source, target).differences == ()
    loaded = keras.models.load_model(target)
    loaded.run_eagerly = True  # as the other: to compile so many functions takes far longer than two steps
    for want, got in zip(model(x), loaded(x), strict=True):
        np.testing.assert_allclose(np.asarray(got), want.numpy(), rtol=1e-5, atol=1e-6)
    for _ in range(2):
        want, got = (loss_of_batch(network, x, targets) for network in (model, loaded))
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_two_branches_of_one_nested_model_are_added(tmp_path: Path) -> None:
    """The second operand stands among the keyword arguments, with the number that Keras 2 gives calls of models."""
    import keras
    import tf_keras

    base = tf_keras.Sequential([tf_keras.layers.InputLayer((3,)), tf_keras.layers.Dense(3)])
    a, b = tf_keras.Input((3,)), tf_keras.Input((3,))
    model = tf_keras.Model([a, b], base(a) - 2.0 * base(b))
    model.compile(tf_keras.optimizers.legacy.Adam(0.01), "mse")
    x = list(np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32))
    model.train_on_batch(x, np.zeros((4, 3)))
    model.save(tmp_path / "source.h5")
    assert migrate.migrate_checkpoint(tmp_path / "source.h5", tmp_path / "x.keras", to="keras").fidelity == "exact"
    loaded = keras.models.load_model(tmp_path / "x.keras")
    np.testing.assert_allclose(np.asarray(loaded(x)), model(x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda tf, a: tf.cumsum(a, axis=1), "tf.math.cumsum"),
        (lambda tf, a: tf.reshape(a, (tf.shape(a)[0], 3, 2)), "tf.compat.v1.shape"),
        (lambda tf, a: tf.nn.silu(a, beta=2.0), "with beta=2.0"),
        (lambda tf, a: tf.matmul(a, a, transpose_b=True), "with transpose_b=True"),
        (lambda tf, a: a[..., 0], "__ellipsis__"),
        (lambda tf, a: tf.squeeze(a), "with no axis"),
    ],
)
@pytest.mark.quick(2)
def test_what_keras_3_cannot_say_is_refused_and_passed_to_tf_keras(call: Any, why: str, tmp_path: Path) -> None:
    import tensorflow as tf
    import tf_keras

    inputs = tf_keras.Input((6,))
    model = tf_keras.Model(inputs, call(tf, tf_keras.layers.Dense(6)(inputs)))
    model.compile(tf_keras.optimizers.legacy.SGD(0.01, momentum=0.9), "mse")
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    model.train_on_batch(x, np.zeros(model(x).shape))
    model.save(tmp_path / "source.h5")
    with pytest.raises(UnsupportedError) as refused:
        migrate.migrate_checkpoint(tmp_path / "source.h5", tmp_path / "x.keras", to="keras")
    assert why in str(refused.value)
    report = migrate.migrate_checkpoint(tmp_path / "source.h5", tmp_path / "x.h5", to="tf-keras")
    assert report.fidelity == "exact"
    again = tf_keras.models.load_model(tmp_path / "x.h5")
    np.testing.assert_allclose(np.asarray(again(x)), np.asarray(model(x)), rtol=1e-6)
