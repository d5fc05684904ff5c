"""`optim.Groups` in `compile` and `fit` of Keras 3 and tf_keras: the same numbers, callbacks, saved models."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import optim
from optim.errors import UnsupportedError

X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(16, 2)).astype(np.float32)
BOTH = pytest.mark.parametrize("module", [keras, tf_keras], ids=["keras3", "tf_keras"])


@pytest.fixture(autouse=True)
def _devices(devices: list[str]) -> None:
    """Logical devices come before the first model."""


def model(module: Any) -> Any:
    module.utils.set_random_seed(3)
    layers = module.layers
    first = layers.Dense(8, "relu", name="first")
    return module.Sequential([layers.Input((4,)), first, layers.Dense(2, name="second")])


def groups(**options: Any) -> optim.Groups:
    return optim.Groups(
        [("bias", optim.SGD(0.1, momentum=0.9)), (None, optim.AdamW(0.01, weight_decay=0.1))], **options
    )


def compiled(module: Any, optimizer: Any, **compiling: Any) -> Any:
    made = model(module)
    made.compile(optim.for_keras(optimizer, module), "mse", **(compiling or {"jit_compile": False}))
    return made


def fit(made: Any, epochs: int = 2, callbacks: Any = ()) -> None:
    made.fit(X, Y, 4, epochs, verbose=0, shuffle=False, callbacks=list(callbacks))


def expected(module: Any, steps: int = 8) -> list[np.ndarray]:
    """The weights after a loop in which each optimizer steps its variables."""
    made = model(module)
    bias, rest = optim.SGD(0.1, momentum=0.9), optim.AdamW(0.01, weight_decay=0.1)
    weights = [getattr(v, "value", v) if module is keras else v for v in made.trainable_variables]
    for step in range(steps):
        rows = slice(4 * (step % 4), 4 * (step % 4) + 4)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((made(X[rows]) - Y[rows]) ** 2)
        pairs = list(zip(tape.gradient(loss, weights), made.trainable_variables, strict=True))
        bias.apply_gradients(pairs[1::2])
        rest.apply_gradients(pairs[0::2])
    return [np.asarray(w) for w in made.get_weights()]


@BOTH
@pytest.mark.parametrize("compiling", [{"jit_compile": False}, {"run_eagerly": True}], ids=["function", "eager"])
@pytest.mark.quick(1)
def test_a_fit_is_a_loop_with_the_members(module: Any, compiling: Any) -> None:
    made = compiled(module, groups(), **compiling)
    fit(made)
    for one, two in zip(made.get_weights(), expected(module), strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-5, atol=2e-6)
    assert int(made.optimizer.iterations.numpy()) == 8
    assert [type(m) for m in made.optimizer.members] == [optim.SGD, optim.AdamW]


@BOTH
@pytest.mark.quick(1)
def test_callbacks_move_the_rates_of_all_groups(module: Any) -> None:
    made = compiled(module, groups())
    fit(made, 3, [module.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)])
    assert [float(m.learning_rate) for m in made.optimizer.members] == pytest.approx([0.1 / 8, 0.01 / 8], rel=1e-6)
    plateau = module.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.1, patience=0, min_delta=1e9)
    fit(made, 2, [plateau])
    assert [float(m.learning_rate) for m in made.optimizer.members] == pytest.approx([0.1 / 80, 0.01 / 80], rel=1e-6)


@BOTH
def test_options_of_members_are_refused_on_the_whole(module: Any) -> None:
    made = compiled(module, groups())
    with pytest.raises(UnsupportedError, match=r"members\[i\].weight_decay"):
        made.optimizer.weight_decay = 0.1
    made.optimizer.global_clipnorm = 0.5
    assert made.optimizer.inner.global_clipnorm == 0.5


@pytest.mark.breadth
@BOTH
def test_a_saved_model_continues(module: Any, tmp_path: Path) -> None:
    schedule = module.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    optimizer = optim.Groups([("bias", optim.SGD(schedule)), (None, optim.AdamW(0.01))], use_ema=True)
    made = compiled(module, optimizer)
    fit(made)
    optim.keras_objects(module)
    path = str(tmp_path / "model.keras")
    made.save(path)
    loaded = module.models.load_model(path)
    assert type(loaded.optimizer.members[0]._learning_rate) is type(schedule)
    fit(made)
    fit(loaded)
    for one, two in zip(made.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    for one, two in zip(made.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))


@BOTH
def test_a_copy_for_keras_has_the_same_groups(module: Any) -> None:
    adapted = optim.for_keras(groups(), module)
    again = copy.deepcopy(adapted)
    assert again.get_config() == adapted.get_config()
    assert type(adapted).from_config(adapted.get_config()).get_config() == adapted.get_config()
