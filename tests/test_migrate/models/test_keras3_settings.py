"""What a program of Keras 3 can set that its files say only in part: files written here, by Keras itself."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
from migrate.errors import ContradictionError
from optim.errors import UnsupportedError
from tests.helpers import next_steps
from tests.helpers.keras_releases import loss_of_batch, needs_keras

BATCH = np.linspace(-1, 1, 18, dtype=np.float32).reshape(6, 3), np.linspace(0, 1, 6, dtype=np.float32)[:, None]


def _trained(optimizer: Any, prepare: Callable[[Any], None] | None = None) -> Any:
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
    if prepare is not None:
        prepare(model)
    model.compile(optimizer, "mse")
    for _ in range(3):
        model.train_on_batch(*BATCH)
    return model


def _exchanged(first: Any, second: Any) -> Any:
    """A model whose optimizer was set after it was compiled."""
    model = _trained(first)
    model.optimizer = second
    model.make_train_function(force=True)
    second.build(model.trainable_variables)
    model.train_on_batch(*BATCH)
    return model


def _steps(model: Any, count: int = 4) -> dict[str, np.ndarray]:
    """The model's own next steps, as `next_steps` has them."""
    variables, batches = model.trainable_variables, np.random.default_rng(2)
    oracle = {f"at_save/var/{i}": np.asarray(v) for i, v in enumerate(variables)}
    for step in range(count):
        gradients = [batches.normal(size=v.shape).astype(np.float32) for v in variables]
        model.optimizer.apply(gradients, variables)
        oracle |= {f"grad/{step}/{i}": g for i, g in enumerate(gradients)}
        oracle |= {f"var/{step}/{i}": np.asarray(v) for i, v in enumerate(variables)}
    return oracle


def test_the_config_of_an_optimizer_that_was_exchanged_is_no_other_ones(tmp_path: Path) -> None:
    from keras import optimizers

    model = _exchanged(optimizers.Adam(0.1), optimizers.AdamW(0.1))
    model.save(tmp_path / "model.keras")
    with pytest.raises(
        ContradictionError, match=r"adam_?w.*AdamW are, and the optimizer's config in the source specifies Adam"
    ):
        migrate.read(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    hint = {"class_name": "Adam", "config": optimizers.Adam(0.1).get_config()}
    with pytest.raises(ContradictionError, match=r"adam_?w.*AdamW are, and --optimizer-config specifies Adam"):
        migrate.read(tmp_path / "model.weights.h5", optimizer_config=hint)


@needs_keras("3.15")  # both have one name before
def test_one_of_the_same_class_is_asked_about(tmp_path: Path) -> None:
    from keras import optimizers

    for first in (optimizers.Adam(0.1), optimizers.LossScaleOptimizer(optimizers.Adam(0.1))):
        model = _exchanged(first, optimizers.Adam(0.1, beta_2=0.5))
        model.save(tmp_path / "model.keras")
        state = migrate.read(tmp_path / "model.keras")
        assert state.fidelity == "approximate"
        assert f"--set name={model.optimizer.name}" in state.reasons[0]
        confirmed = migrate.read(tmp_path / "model.keras", overrides={"name": model.optimizer.name})
        assert confirmed.fidelity == "exact"


@pytest.mark.parametrize("name", ["adam", "mine"])
@pytest.mark.quick(1)
def test_one_that_was_never_exchanged_is_exact(name: str, tmp_path: Path) -> None:
    from keras import optimizers

    inner = optimizers.Adam(0.1, name=name)
    for optimizer in (inner, optimizers.LossScaleOptimizer(optimizers.Adam(0.1, name=name))):
        _trained(optimizer).save(tmp_path / "model.keras")
        assert migrate.read(tmp_path / "model.keras").fidelity == "exact"


def test_a_scale_of_the_loss_around_another_is_never_exact(tmp_path: Path) -> None:
    from keras import optimizers

    within = optimizers.LossScaleOptimizer(optimizers.Adam(0.1), initial_scale=8.0)
    _trained(optimizers.LossScaleOptimizer(within, initial_scale=64.0)).save(tmp_path / "model.keras")
    state = migrate.read(tmp_path / "model.keras")
    assert state.fidelity == "approximate"
    assert "by which no loss was multiplied" in state.reasons[0]


@pytest.mark.breadth
def test_averages_that_are_put_in_at_no_step_or_on_jax_at_each(tmp_path: Path) -> None:
    from keras import optimizers

    model = _trained(optimizers.Adam(0.1, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=0))
    source = tmp_path / "model.keras"
    model.save(source)
    assert migrate.migrate_checkpoint(source, tmp_path / "out").fidelity == "exact"
    assert next_steps.of_slots(tmp_path / "out", _steps(model), 4) < next_steps.NEAR

    reasons = migrate.read(_with_another_counter(source, tmp_path / "jax.keras")).reasons
    assert len(reasons) == 1
    assert "--set ema_overwrite_frequency=1" in reasons[0]
    for value in (1, None):
        state = migrate.read(tmp_path / "jax.keras", overrides={"ema_overwrite_frequency": value})
        assert state.fidelity == "exact"
        assert state.hyperparameters.get("ema_overwrite_frequency") == value


def _freeze(name: str, use_bias: bool) -> Callable[[Any], None]:
    def prepare(model: Any) -> None:
        from keras import layers

        model.add(layers.Dense(1, use_bias=use_bias))
        getattr(model.layers[-1], name).trainable = False

    return prepare


def test_a_variable_that_is_frozen_alone_is_refused_in_a_model(tmp_path: Path) -> None:
    from keras import optimizers

    model = _trained(optimizers.Adam(0.1), _freeze("bias", use_bias=True))
    model.save(tmp_path / "model.keras")
    untrained = {"untrained": [migrate.read(tmp_path / "model.keras").variables[-1].name]}
    report = migrate.migrate_checkpoint(tmp_path / "model.keras", tmp_path / "slots", overrides=untrained)
    assert report.fidelity == "exact"
    with pytest.raises(UnsupportedError, match="was trained only in part, which a Keras config cannot express"):
        migrate.migrate_checkpoint(tmp_path / "model.keras", tmp_path / "m.h5", to="tf-keras", overrides=untrained)


def test_a_layer_whose_one_variable_is_frozen_is_frozen_in_the_model(tmp_path: Path) -> None:
    import tf_keras
    from keras import optimizers

    model = _trained(optimizers.Adam(0.1), _freeze("kernel", use_bias=False))
    model.save(tmp_path / "model.keras")
    late = migrate.read(tmp_path / "model.keras").variables[-1].name
    untrained = {"untrained": [late]}
    report = migrate.migrate_checkpoint(tmp_path / "model.keras", tmp_path / "m.h5", to="tf-keras", overrides=untrained)
    assert report.fidelity == "exact"
    loaded = tf_keras.models.load_model(tmp_path / "m.h5")
    live, oracle = loaded.trainable_variables, _steps(model)
    assert len(live) == len(model.trainable_variables) == 4
    assert next_steps.error(next_steps.applying(loaded.optimizer, live), live, oracle, 4) < next_steps.NEAR


@pytest.mark.parametrize("name", ["Adam", "SGD"])
@pytest.mark.quick(1)
def test_scales_of_float8_are_overwritten_and_have_no_slots(name: str, tmp_path: Path) -> None:
    import keras

    model = _trained(getattr(keras.optimizers, name)(0.1), lambda model: model.quantize("float8"))
    model.save(tmp_path / "model.keras")
    report = migrate.migrate_checkpoint(tmp_path / "model.keras", tmp_path / "slots")
    assert report.fidelity == "approximate"
    assert [reason for reason in report.reasons if "float8" not in reason] == []
    model_report = migrate.migrate_checkpoint(tmp_path / "model.keras", tmp_path / "out.keras", to="keras")
    assert model_report.fidelity == "exact"
    loaded = keras.models.load_model(tmp_path / "out.keras")
    for _ in range(3):
        assert loss_of_batch(loaded, *BATCH) == loss_of_batch(model, *BATCH)
    for layer, original in zip(
        loaded.layers, model.layers, strict=True
    ):  # in which the scales stand first once it is loaded
        there, here = ({v.name: np.asarray(v) for v in twin.trainable_variables} for twin in (layer, original))
        assert len(here) == 8
        np.testing.assert_equal(there, here)


def _with_another_counter(source: Path, dest: Path) -> Path:
    """The file as JAX and PyTorch write it, whose step counters are int32."""
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    weights = io.BytesIO(members["model.weights.h5"])
    with h5py.File(weights, "r+") as file:
        variables = file["optimizer/vars"]
        counter = variables["0"][()].astype(np.int32)
        del variables["0"]
        variables["0"] = counter
    members["model.weights.h5"] = weights.getvalue()
    with zipfile.ZipFile(dest, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return dest
