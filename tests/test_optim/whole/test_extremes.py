"""Gradients that are huge, low in precision or of unknown shape, and graphs of TF1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.errors import UnsupportedError
from optim.layouts.placement import to_host
from tests.test_optim.support import put, stepper, variable


def _options(mode: str) -> dict[str, Any]:
    return {} if mode == "function" else {"executor": mode}


@pytest.mark.parametrize("mode", ["local", "portable", "function"])
@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm"])
@pytest.mark.parametrize("place", ["plain", "mesh"])
@pytest.mark.parametrize("size", [1e20, 1e30, 1e-30])
@pytest.mark.quick(8)
def test_norms_of_huge_and_tiny_gradients(size: float, place: str, clip: str, mode: str, mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2) if place == "mesh" else None
    var = variable([0.0, 0.0], layout, "w", tf.float32)
    optimizer = optim.SGD(1.0, **{clip: 1.0}, **_options(mode))
    stepper(optimizer, mode)([(put([3.0 * size, 4.0 * size], layout, tf.float32), var)])
    wanted = [-0.6, -0.8] if size > 1 else [-3.0 * size, -4.0 * size]
    np.testing.assert_allclose(to_host(var), wanted, rtol=1e-6)


@pytest.mark.parametrize("mode", ["local", "portable", "function"])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm"])
def test_what_is_not_finite_stays_visible(clip: str, bad: float, mode: str) -> None:
    var = tf.Variable([1.0, 1.0])
    stepper(optim.SGD(1.0, **{clip: 1.0}, **_options(mode)), mode)([(tf.constant([bad, 1.0]), var)])
    assert np.isnan(var.numpy()).any()


@pytest.mark.parametrize("mode", ["local", "portable", "function"])
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
@pytest.mark.parametrize("options", [{}, {"master_copies": True}, {"gradient_accumulation_steps": 2}], ids=str)
def test_repeated_rows_of_low_precision_add_up(options: dict[str, Any], dtype: Any, mode: str) -> None:
    var = tf.Variable(tf.zeros([3, 2], dtype))
    optimizer = optim.SGD(1.0, **options, **_options(mode))
    slices = tf.IndexedSlices(tf.ones([5000, 2], dtype), tf.ones([5000], tf.int32), tf.constant([3, 2]))
    for _ in range(options.get("gradient_accumulation_steps", 1)):
        stepper(optimizer, mode)([(slices, var)])
    np.testing.assert_allclose(tf.cast(var, tf.float32)[1], [-5000.0] * 2, rtol=2.0**-8)
    assert not np.any(tf.cast(var, tf.float32)[0])
    if options.get("master_copies"):
        np.testing.assert_array_equal(optimizer.get_slot(var, "master")[1], [-5000.0] * 2)


def test_a_gradient_of_unknown_shape_is_checked_when_the_function_runs() -> None:
    first, second = tf.Variable([1.0, 1.0]), tf.Variable([[1.0, 1.0]])
    optimizer = optim.SGD(1.0)
    optimizer.build([first, second])

    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec(None)])
    def step(a: tf.Tensor, b: tf.Tensor) -> None:
        optimizer.apply_gradients([(a, first), (b, second)])

    step(tf.constant([1.0, 2.0]), tf.constant([[1.0, 2.0]]))
    np.testing.assert_array_equal(first, [0.0, -1.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with expected shape"):
        step(tf.constant([1.0, 2.0]), tf.constant(1.0))
    np.testing.assert_array_equal(first, [0.0, -1.0])
    np.testing.assert_array_equal(second, [[0.0, -1.0]])
    assert int(optimizer.iterations) == 1


def test_a_tf1_graph_raises_and_says_what_to_do() -> None:
    optimizer = optim.SGD(0.1)
    with tf.Graph().as_default():
        with pytest.raises(UnsupportedError, match=r"tf\.function"):
            optim.Adam()
        with pytest.raises(UnsupportedError, match=r"tf\.function"):
            optimizer.apply_gradients([(tf.constant(1.0), tf.constant(1.0))])
        with pytest.raises(UnsupportedError, match=r"tf\.function"):
            optim.legacy.v2.Adam()


def test_a_variable_that_is_overwritten_by_its_gradient() -> None:
    var, scale = tf.Variable([1.0]), tf.Variable([1.0])
    scale.overwrite_with_gradient = True
    optimizer = optim.Adam(0.1, weight_decay=0.1)
    optimizer.apply_gradients([(tf.constant([1.0]), var), (tf.constant([5.0]), scale)])
    tf.function(lambda: optimizer.apply_gradients([(tf.constant([1.0]), var), (tf.constant([7.0]), scale)]))()
    np.testing.assert_array_equal(scale, [7.0])
    assert var.numpy()[0] < 1.0
    assert int(optimizer.iterations) == 2
    tf.function(lambda: optimizer.apply_gradients([(tf.constant([9.0]), scale)]))()
    optimizer.apply_gradients([(tf.constant([8.0]), scale)])  # with no other, which took part before
    np.testing.assert_array_equal(scale, [8.0])
    assert int(optimizer.iterations) == 4
