"""What `for_keras` returns, in `optim`'s own checkpoints and in `migrate.restore`: fit, save, load, fit on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import migrate
import optim
from optim.errors import UnsupportedError

BOTH = pytest.mark.parametrize("module", [keras, tf_keras], ids=["keras3", "tf_keras"])
X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(8, 2)).astype(np.float32)


def model_of(module: Any) -> Any:
    init = module.initializers.GlorotUniform(seed=1)
    return module.Sequential([module.layers.Input((3,)), module.layers.Dense(2, kernel_initializer=init, name="out")])


def fit(module: Any, model: Any, optimizer: Any) -> Any:
    model.compile(optimizer, "mse", run_eagerly=True)
    model.fit(X, Y, 4, 2, verbose=0, shuffle=False)
    return model


def weights_of(model: Any) -> dict[str, Any]:
    return dict(zip(("kernel", "bias"), model.trainable_variables, strict=True))


def make() -> Any:
    return optim.Adam(0.05, use_ema=True, ema_momentum=0.9, weight_decay=0.1)


def same(one: Any, two: Any) -> None:
    for a, b in zip(one.get_weights(), two.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    for a, b in zip(one.optimizer.variables, two.optimizer.variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6, atol=1e-7, err_msg=a.name)


@BOTH
@pytest.mark.quick(1)
def test_training_goes_on_from_a_checkpoint(module: Any, tmp_path: Path) -> None:
    model = fit(module, model_of(module), optim.for_keras(make(), module))
    optim.save_checkpoint(tmp_path / "c", model.optimizer, weights_of(model))
    assert optim.describe_checkpoint(tmp_path / "c").algorithm == "Adam"
    loaded, restored = model_of(module), model_of(module)
    made = optim.load_checkpoint(tmp_path / "c", weights_of(loaded))
    live = optim.for_keras(make(), module)
    report = migrate.restore(str(tmp_path / "c"), live, weights_of(restored), restore_variables=True)
    assert report.fidelity == "exact", report.reasons
    for again, optimizer in ((loaded, optim.for_keras(made, module)), (restored, live)):
        assert int(optimizer.iterations) == 4
        fit(module, again, optimizer)
    fit(module, model, model.optimizer)
    same(model, loaded)
    same(model, restored)
    restored.save(tmp_path / "m.keras")
    read = module.models.load_model(tmp_path / "m.keras", custom_objects=optim.keras_objects(module))
    same(read, restored)
    into = optim.for_keras(make(), module)
    into.build(list(weights_of(model_of(module)).values()))
    path = tf.train.Checkpoint(optimizer=live).write(str(tmp_path / "tf"))
    tf.train.Checkpoint(optimizer=into).read(path).assert_consumed()
    assert int(into.iterations) == 8


@BOTH
def test_variables_that_users_set_on_it_are_in_checkpoints(module: Any, tmp_path: Path) -> None:
    """As on the optimizers of Keras, and whether they are restored before or after there are slots."""
    saved, restored = optim.for_keras(make(), module), optim.for_keras(make(), module)
    saved.examples_seen, restored.examples_seen = tf.Variable(7), tf.Variable(0)
    fit(module, model_of(module), saved)
    path = tf.train.Checkpoint(optimizer=saved).write(str(tmp_path / "tf"))
    reading = tf.train.Checkpoint(optimizer=restored).read(path)
    assert int(restored.examples_seen) == 7
    restored.build(list(weights_of(model_of(module)).values()))
    reading.assert_consumed()
    assert int(restored.iterations) == 4


@BOTH
def test_what_is_not_ours_is_refused(module: Any, tmp_path: Path) -> None:
    variable = tf.Variable([1.0], name="w")
    scaling = (module.optimizers if module is keras else module.mixed_precision).LossScaleOptimizer
    wrapped = scaling(optim.for_keras(optim.SGD(0.1), module))
    wrapped.build([variable])
    for optimizer, word in (
        (wrapped, "inner_optimizer"),
        (optim.for_keras(optim.legacy.v2.SGD(0.1), module), "legacy"),
        (module.optimizers.SGD(0.1), "dtopt migrate"),
    ):
        with pytest.raises(UnsupportedError, match=word):
            optim.save_checkpoint(tmp_path / "c", optimizer, [variable])
    assert not (tmp_path / "c").exists()
    optim.save_checkpoint(tmp_path / "c", wrapped.inner_optimizer, [variable])
