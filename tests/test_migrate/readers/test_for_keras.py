"""Models that Keras saved with an optimizer of `optim.for_keras`: their state goes on as it was."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.errors import DamagedFileError, MissingHintError
from optim.errors import UnsupportedError

BATCH = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model of Keras 3, and the file that it was saved in."""
    import keras

    import optim
    from optim import schedules

    layers = [keras.layers.Dense(4, activation="tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((5,)), *layers])
    rate = schedules.ExponentialDecay(0.01, 10, 0.9)
    model.compile(optim.for_keras(optim.Nadam(rate, clipnorm=1.0, weight_decay=0.01), keras), "mse")
    for _ in range(3):
        model.train_on_batch(BATCH, BATCH[:, :3])
    path = tmp_path_factory.mktemp("for_keras") / "model.keras"
    model.save(path)
    return model, path


def test_the_next_steps_are_the_same(trained: tuple[Any, Path], tmp_path: Path) -> None:
    import tensorflow as tf

    import optim

    model, path = trained
    report = migrate.migrate_checkpoint(path, tmp_path / "out")
    assert (report.fidelity, report.optimizer, report.iterations) == ("exact", "Nadam", 3)
    assert migrate.verify(path, tmp_path / "out").ok
    names = [v.name for v in optim.describe_checkpoint(tmp_path / "out").variables if v.trainable]
    live = {name: tf.Variable(v.numpy()) for name, v in zip(names, model.trainable_variables, strict=True)}
    ours, theirs = optim.load_checkpoint(tmp_path / "out", live, restore_variables=False), model.optimizer
    for _ in range(2):
        gradients = [tf.fill(v.shape, 0.3) for v in live.values()]
        ours.apply_gradients(zip(gradients, live.values(), strict=True))
        theirs.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    for mine, other in zip(live.values(), model.trainable_variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), np.asarray(other))


@pytest.mark.parametrize("count_calls", [True, False])
def test_gathered_gradients_go_to_keras_where_it_counts_the_same(count_calls: bool, tmp_path: Path) -> None:
    import keras
    import tensorflow as tf

    import optim

    keras.utils.set_random_seed(0)  # where sums of gradients cancel out, roundings show
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    optimizer = optim.Adam(rate, gradient_accumulation_steps=2, count_calls=count_calls)
    model.compile(optim.for_keras(optimizer, keras), "mse")
    for _ in range(5):
        model.train_on_batch(BATCH, BATCH[:, :3])
    model.save(tmp_path / "model.keras")
    if not count_calls:
        with pytest.raises(UnsupportedError, match="count real steps here, and calls in Keras 3"):
            migrate.migrate_checkpoint(tmp_path / "model.keras", tmp_path / "out.keras")
        return
    assert migrate.migrate_checkpoint(tmp_path / "model.keras", tmp_path / "out.keras").fidelity == "exact"
    loaded = keras.saving.load_model(tmp_path / "out.keras")
    assert type(loaded.optimizer) is keras.optimizers.Adam
    for network in (model, loaded):
        for size in (0.3, -0.2, 0.5):
            gradients = [tf.fill(v.shape, size) for v in network.trainable_variables]
            network.optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
    for mine, other in zip(model.trainable_variables, loaded.trainable_variables, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(other), rtol=0, atol=1e-6)


def _altered(path: Path, folder: Path, change: Any) -> Path:
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(folder / "model.keras", "w") as target:
        for name in archive.namelist():
            data = archive.read(name)
            if name == "config.json":
                document = json.loads(data)
                change(document["compile_config"]["optimizer"]["config"], document["config"]["layers"])
                data = json.dumps(document).encode()
            target.writestr(name, data)
    return folder / "model.keras"


@pytest.mark.parametrize(
    ("registered", "name", "dtype"),
    [(None, "ExponentialDecay", "float32"), ("own>ExponentialDecay", "own>ExponentialDecay", None)],
)
def test_a_schedule_as_keras_saves_it(
    registered: Any, name: str, dtype: Any, trained: tuple[Any, Path], tmp_path: Path
) -> None:
    """Keras computes its own in float32; one that is called so, and is registered, is another."""
    config = {"initial_learning_rate": 0.01, "decay_steps": 10, "decay_rate": 0.9}
    home = "keras.optimizers.schedules" if registered is None else None
    rate = {"module": home, "class_name": "ExponentialDecay", "config": config, "registered_name": registered}
    path = _altered(trained[1], tmp_path, lambda saved, _: saved.update(learning_rate=rate))
    schedule = migrate.read(path).hyperparameters["learning_rate"]
    assert (schedule["class_name"], schedule["config"], schedule.get("dtype")) == (name, config, dtype)


def test_what_denies_the_state_is_refused(trained: tuple[Any, Path], tmp_path: Path) -> None:
    def frozen(_: Any, layers: Any) -> None:
        layers[1]["config"]["trainable"] = False

    with pytest.raises(DamagedFileError, match="slots of 6 variables, and its model 4"):
        migrate.read(_altered(trained[1], tmp_path, frozen))
    with pytest.raises(UnsupportedError, match="not a class of optim"):
        migrate.read(_altered(trained[1], tmp_path, lambda config, _: config.update(algorithm="Mine>Nadam")))


def test_weights_alone_do_not_say_the_rule(trained: tuple[Any, Path], tmp_path: Path) -> None:
    trained[0].save_weights(tmp_path / "model.weights.h5")
    with pytest.raises(MissingHintError, match=r"optim\.for_keras made, without its config"):
        migrate.read(tmp_path / "model.weights.h5")
