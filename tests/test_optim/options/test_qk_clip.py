"""QK-clip: logits of clipped heads shrink to the threshold, other heads keep theirs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import optim
from optim.errors import HyperparameterError, MismatchError
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.support import Place, put

HEADS, SIZE, FEATURES, LIMIT = 2, 3, 8, 5.0
SHAPES = {"query": (FEATURES, HEADS, SIZE), "key": (FEATURES, HEADS, SIZE), "b_q": (HEADS, SIZE), "b_k": (HEADS, SIZE)}


def start() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    values = {name: random.normal(size=shape) for name, shape in SHAPES.items()}
    values["query"][:, 1] *= 1e-3  # a head of small logits
    values["b_q"][1] *= 1e-3
    return values


def max_logits(values: dict[str, Any]) -> np.ndarray:
    x = np.random.default_rng(1).normal(size=(20, FEATURES))
    q = np.einsum("bf,fhs->bhs", x, values["query"]) + values["b_q"]
    k = np.einsum("bf,fhs->bhs", x, values["key"]) + values["b_k"]
    return np.einsum("bhs,chs->hbc", q, k).max(axis=(1, 2))


@pytest.mark.parametrize("share", [0.5, 0.2])
@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("layout", ["plain", "mesh"])
def test_logits_shrink_to_the_threshold(layout: str, mode: str, share: float, request: Any) -> None:
    mesh = None if layout == "plain" else request.getfixturevalue("mesh_2x2")
    specs = {"query": ["batch", "model", "unsharded"], "key": ["unsharded", "model", "unsharded"]}
    variables = Place(mesh, specs if mesh else {}).variables(start())
    clip = optim.QKClip(
        [variables["query"], variables["b_q"]], [variables["key"], variables["b_k"]], LIMIT, query_share=share
    )
    before = max_logits(start())
    assert before[0] > 2 * LIMIT
    assert before[1] < LIMIT
    call = clip if mode == "eager" else tf.function(clip, autograph=False)
    call(put(before, Place(mesh, {}).layout("logits", 1)) if mode == "function" else tf.constant(before))
    found = {name: value_of(variable) for name, variable in variables.items()}
    np.testing.assert_allclose(max_logits(found), [LIMIT, before[1]], rtol=1e-12)
    np.testing.assert_allclose(found["query"][:, 0], start()["query"][:, 0] * (LIMIT / before[0]) ** share, rtol=1e-12)
    for name in ("query", "key"):
        np.testing.assert_array_equal(found[name][:, 1], start()[name][:, 1])


def test_columns_of_a_dense_kernel_belong_to_heads() -> None:
    query, key = (tf.Variable(tf.ones((4, HEADS * SIZE), tf.float64)) for _ in range(2))
    optim.QKClip([query], [key], 1.0, axis=-1)(tf.constant([4.0, float("nan")]))
    expected = np.repeat([0.5, 1.0], SIZE) * np.ones((4, 1))
    np.testing.assert_allclose(query.numpy(), expected)
    np.testing.assert_allclose(key.numpy(), expected)


@pytest.mark.parametrize("layout", ["plain", "mesh"])
def test_query_heads_that_share_a_key_head_shrink_together(layout: str, request: Any) -> None:
    mesh = None if layout == "plain" else request.getfixturevalue("mesh_2x2")
    specs = {"query": ["batch", "model"], "key": ["unsharded", "model"]}
    start_of_both = {"query": np.ones((4, 4 * SIZE)), "key": np.ones((4, 2 * SIZE))}
    variables = Place(mesh, specs if mesh else {}).variables(start_of_both)
    clip = optim.QKClip([variables["query"]], [variables["key"]], 1.0, axis=-1, key_heads=2)
    clip(tf.constant([4.0, 16.0, 0.5, float("nan")]))
    for name, heads in (("query", 4), ("key", 2)):
        factor = np.repeat([0.25, 1.0], heads // 2 * SIZE)  # (1 / 16)^0.5 for the first two queries and their key
        np.testing.assert_allclose(value_of(variables[name]), factor * np.ones((4, 1)))


def test_a_model_of_keras_clips_in_fit() -> None:
    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.attention = keras.layers.MultiHeadAttention(HEADS, SIZE)

        def call(self, x: Any) -> Any:
            return self.attention(x, x)

        def train_step(self, data: Any) -> Any:
            metrics = super().train_step(data)
            layer = self.attention
            clip = optim.QKClip(layer.query_dense.variables, layer.key_dense.variables, 1.0)
            clip(tf.constant([4.0, 0.5]))
            return metrics

    model = Model()
    x = np.zeros((2, 4, FEATURES), np.float32)
    model(x)
    before = np.array(model.attention.query_dense.kernel)
    model.compile(optim.for_keras(optim.Muon(0.1, weight_decay=None, adam_weight_decay=None), keras), "mse")
    model.fit(x, x, epochs=1, verbose=0)  # whose gradients of kernels are zero
    np.testing.assert_allclose(
        np.array(model.attention.query_dense.kernel), before * np.array([0.5, 1.0])[:, None], rtol=1e-6
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threshold": 0.0}, "threshold"),
        ({"query_share": 1.5}, "query_share"),
        ({"query": []}, "needs variables"),
        ({"key_heads": 0}, "key_heads"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    variable = tf.Variable(tf.ones((2, 2)))
    with pytest.raises(HyperparameterError, match=message):
        optim.QKClip(**{"query": [variable], "key": [variable], **arguments})


def test_heads_that_do_not_fit_change_nothing() -> None:
    query, key = tf.Variable(tf.ones((4, 2, 3))), tf.Variable(tf.ones((4, 3, 3)))
    with pytest.raises(MismatchError, match="2 heads do not divide"):
        optim.QKClip([query], [key])(tf.constant([1e3, 1e3]))
    with pytest.raises(MismatchError, match="key_heads=3 does not divide"):
        optim.QKClip([query], [key], key_heads=3)(tf.constant([1e3, 1e3]))
    with pytest.raises(MismatchError, match="shape"):
        optim.QKClip([query], [key])(tf.constant(1e3))
    np.testing.assert_array_equal(query.numpy(), np.ones((4, 2, 3)))
