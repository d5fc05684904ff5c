"""A transformer trained in one `tf.function` on several meshes, as on one device, however slots are placed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from tests.helpers.dtensor_asserts import value_of
from tests.reference.adam import Adam
from tests.reference.common import Options, Training
from tests.test_optim.support import put, variable

WIDTH, HIDDEN, WORDS, LENGTH, BATCH, CALLS = 8, 16, 12, 4, 8, 4
SPECS: Mapping[str, tuple[tuple[int, ...], list[str]]] = {
    "words": ((WORDS, WIDTH), ["", ""]),
    "scale": ((WIDTH,), [""]),
    "query": ((WIDTH, WIDTH), ["", "model"]),
    "key": ((WIDTH, WIDTH), ["", "model"]),
    "value": ((WIDTH, WIDTH), ["", "model"]),
    "out": ((WIDTH, WIDTH), ["model", ""]),
    "up": ((WIDTH, HIDDEN), ["", "model"]),
    "up_bias": ((HIDDEN,), ["model"]),
    "down": ((HIDDEN, WIDTH), ["model", ""]),
    "logits": ((WIDTH, WORDS), ["", ""]),
}
"""Shape by variable, and the mesh axis of each dim, as Megatron-LM divides them (Shoeybi et al., 2019)."""
MESHES = {"2x2": [("batch", 2), ("model", 2)], "1x4": [("batch", 1), ("model", 4)], "4": [("batch", 4)]}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "bare": {},
    "gathered": {"gradient_accumulation_steps": 2},
    "all": {
        "gradient_accumulation_steps": 2,
        "global_clipnorm": 0.5,
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 2,
        "weight_decay": 0.1,
    },
}
random = np.random.default_rng(0)
START = {name: random.normal(size=shape) * 0.3 for name, (shape, _) in SPECS.items()}
TEXTS = random.integers(0, WORDS, size=(CALLS, BATCH, LENGTH + 1))


def _normalised(x: Any, scale: Any) -> Any:
    x = x - tf.reduce_mean(x, -1, keepdims=True)
    return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + 1e-5) * scale


def _loss(w: Mapping[str, Any], given: Any, next_words: Any) -> Any:
    """One layer with one head, and the cross entropy of the next words."""
    hidden = tf.matmul(given, w["words"])
    query, key, value = (tf.matmul(_normalised(hidden, w["scale"]), w[n]) for n in ("query", "key", "value"))
    hidden += tf.matmul(tf.matmul(tf.nn.softmax(tf.matmul(query, key, transpose_b=True)), value), w["out"])
    hidden += tf.matmul(tf.nn.relu(tf.matmul(_normalised(hidden, w["scale"]), w["up"]) + w["up_bias"]), w["down"])
    logits = tf.matmul(hidden, w["logits"])
    right = tf.reduce_sum(logits * next_words, -1)
    return tf.reduce_mean(tf.reduce_logsumexp(logits, -1) - right)


def _gradients(w: Mapping[str, Any], given: Any, next_words: Any) -> list[Any]:
    with tf.GradientTape() as tape:
        loss = _loss(w, given, next_words)
    found: list[Any] = tape.gradient(loss, list(w.values()))
    return found


def _batches() -> list[tuple[np.ndarray, np.ndarray]]:
    one_hot = np.eye(WORDS)[TEXTS]
    return [(texts[:, :-1], texts[:, 1:]) for texts in one_hot]


@cache
def _reference(option: str) -> Mapping[str, np.ndarray]:
    """The variables after `CALLS` calls on one device, stepped in NumPy."""
    training = Training(Adam(), lambda _: 0.01, START, Options(**OPTIONS[option]))
    for batch in _batches():
        weights = {name: tf.Variable(value) for name, value in training.values.items()}
        found = _gradients(weights, *map(tf.constant, batch))
        training.apply({name: g.numpy() for name, g in zip(weights, found, strict=True)})
    return training.values


def _cases() -> list[Any]:
    usual = {("2x2", "zero1", "gathered", "auto"), ("1x4", "zero1", "gathered", "auto")}
    every = [
        (mesh, placed, option, executor)
        for mesh in MESHES
        for placed in ("like_variable", "zero1")
        for option in OPTIONS
        for executor in ("auto", "portable")
    ]
    return [pytest.param(*case, marks=() if case in usual else pytest.mark.breadth) for case in every]


@pytest.mark.parametrize("mode", ["native"])
@pytest.mark.parametrize(("mesh", "placed", "option", "executor"), _cases())
@pytest.mark.quick(1)
def test_agrees_with_one_device(
    mesh: str, placed: str, option: str, executor: str, mode: str, devices: list[str]
) -> None:
    made = dtensor.create_mesh(MESHES[mesh], devices=devices[:4])
    axes = made.dim_names

    def layout(specs: list[str]) -> dtensor.Layout:
        return dtensor.Layout([spec if spec in axes else dtensor.UNSHARDED for spec in specs], made)

    weights = {name: variable(START[name], layout(specs), name) for name, (_, specs) in SPECS.items()}
    optimizer = optim.Adam(0.01, slot_placement=placed, executor=executor, **OPTIONS[option])

    @tf.function
    def step(given: Any, next_words: Any) -> None:
        optimizer.apply_gradients(zip(_gradients(weights, given, next_words), weights.values(), strict=True))

    for given, next_words in _batches():
        step(put(given, layout(["batch", "", ""])), put(next_words, layout(["batch", "", ""])))
    for name, want in _reference(option).items():
        np.testing.assert_allclose(value_of(weights[name]), want, rtol=1e-9, atol=1e-11, err_msg=name)
