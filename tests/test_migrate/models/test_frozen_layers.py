"""Layers that the source's optimizer does not train arrive frozen in models, or the model is refused."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.readers.keras.model import trainable_flags
from optim.errors import UnsupportedError
from tests.places import KERAS

FROZEN = KERAS / "frozen"
SUFFIX = {"keras": ".keras", "tf-keras": ".h5"}
LIBRARY = {"keras": "keras", "tf-keras": "tf_keras"}
FILE = {"k224-untrained-flat-h5": "m.h5", "k224-frozen-base-then-unfrozen-h5": "frozen.h5"}


@pytest.mark.parametrize("to", ["keras", "tf-keras"])
@pytest.mark.parametrize("hint", ["untrained", "variables"])
@pytest.mark.parametrize("case", FILE)
@pytest.mark.usefixtures("loaded_here")
@pytest.mark.quick(3)
def test_frozen_layers_of_keras_2_stay_where_they_are(case: str, hint: str, to: str, tmp_path: Path) -> None:
    """The steps are those that Keras 2.2.4 took, which trained the head alone."""
    source, dest = FROZEN / case / "source" / FILE[case], tmp_path / f"model{SUFFIX[to]}"
    oracle, document = np.load(FROZEN / case / "oracle.npz"), json.loads((FROZEN / case / "case.json").read_text())
    names = [name.removesuffix(":0") for name in document["weights"]]
    trained = [name.removesuffix(":0") for name in document["trainable"]]
    shapes = {v.name: v.shape for v in migrate.read(source).variables}
    hints: dict[str, Any] = {"variables": [{"name": name, "shape": shapes[name]} for name in trained]}
    if hint == "untrained":
        hints = {"overrides": {"untrained": [name for name in names if name not in trained]}}
    report = migrate.migrate_checkpoint(source, dest, to=to, strict=True, **hints)
    assert any("not trained, and written as frozen" in note for note in report.warnings)
    assert migrate.verify(source, dest, **hints).ok
    model = import_module(LIBRARY[to]).models.load_model(dest)
    assert len(model.trainable_variables) == len(trained)
    steps = document["n"]
    start = {name: oracle[f"at_save/weight/{i}"] for i, name in enumerate(names)}
    for step in range(steps):
        model.train_on_batch(oracle[f"x/{step}/0"], oracle[f"y/{step}/0"])
    weights = model.get_weights()
    for i, name in enumerate(names):
        value = next(w for w in weights if w.shape == start[name].shape and np.abs(w - start[name]).max() < 0.2)
        np.testing.assert_allclose(value, oracle[f"weight/{steps - 1}/{i}"], rtol=1e-5, atol=2e-6)
        assert np.array_equal(value, start[name]) is (name not in trained)


def _model(keras: Any, form: str, optimizer: str = "adam", *between: Any) -> Any:
    """A model whose base was frozen while it was trained, and whose flags say otherwise now."""
    layers = [keras.Input((4,)), keras.layers.Dense(5, name="c1"), *between]
    head = keras.layers.Dense(3, name="head")
    if form == "flat":
        model = keras.Sequential([*layers, head])
        base = model.layers[:-1]
    elif form == "nested":
        base = [keras.Sequential(layers, name="base")]
        model = keras.Sequential([keras.Input((4,)), *base, head])
    else:
        base = [keras.Model(layers[0], layers[1](layers[0]), name="base")]
        model = keras.Sequential([keras.Input((4,)), *base, head])
    for layer in base:
        layer.trainable = False
    model.compile(keras.optimizers.get(optimizer), "mse")
    model.train_on_batch(*_batch())
    for layer in base:
        layer.trainable = True
    return model


def _batch() -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(0)
    return numbers.standard_normal((8, 4)).astype("f"), numbers.standard_normal((8, 3)).astype("f")


def _moved(to: str, dest: Path) -> set[str]:
    """Layers that move in 3 steps of the loaded model."""
    model = import_module(LIBRARY[to]).models.load_model(dest)
    before = [weight.numpy() for weight in model.weights]
    for _ in range(3):
        model.train_on_batch(*_batch())
    named = [getattr(weight, "path", weight.name) for weight in model.weights]
    return {
        name.split("/")[-2]
        for name, weight, old in zip(named, model.weights, before, strict=True)
        if not np.array_equal(weight.numpy(), old)
    }


def _base(source: Path) -> list[str]:
    return [v.name for v in migrate.read(source).variables if "head" not in v.name and "moving" not in v.name]


@pytest.mark.parametrize(
    ("form", "suffix", "to"),
    [
        ("flat", ".keras", "keras"),
        ("nested", ".keras", "keras"),
        pytest.param("functional", ".keras", "keras", marks=pytest.mark.breadth),
        ("functional", ".keras", "tf-keras"),
        pytest.param("flat", ".h5", "keras", marks=pytest.mark.breadth),
        pytest.param("nested", ".h5", "tf-keras", marks=pytest.mark.breadth),
    ],
)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.quick(2)
def test_frozen_layers_of_keras_3_stay_where_they_are(
    form: str, suffix: str, to: str, optimizer: str, tmp_path: Path
) -> None:
    import keras

    source, dest = tmp_path / f"source{suffix}", tmp_path / f"model{SUFFIX[to]}"
    _model(keras, form, optimizer).save(source)
    migrate.migrate_checkpoint(source, dest, to=to, strict=True, overrides={"untrained": _base(source)})
    assert _moved(to, dest) == {"head"}


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("optimizer", ["adam", "SGD"])
@pytest.mark.quick(2)
def test_frozen_layers_of_tf_keras_stay_where_they_are(suffix: str, optimizer: str, tmp_path: Path) -> None:
    """Also next to a layer that only tf_keras has, where its own description of the model is passed on."""
    import tf_keras as keras

    between = [keras.layers.ThresholdedReLU(0.1)] if suffix == ".h5" else []
    source, dest = tmp_path / f"source{suffix}", tmp_path / "model.h5"
    _model(keras, "nested", optimizer, *between).save(source)
    migrate.migrate_checkpoint(source, dest, to="tf-keras", strict=True, overrides={"untrained": _base(source)})
    assert _moved("tf-keras", dest) == {"head"}


@pytest.mark.parametrize("to", ["keras", "tf-keras"])
def test_a_part_of_a_layer_is_refused(to: str, tmp_path: Path) -> None:
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, name="c1"), keras.layers.Dense(3, name="head")])
    model.compile("sgd", "mse")
    model.save(source := tmp_path / "source.keras")
    untrained = [v.name for v in migrate.read(source).variables if v.name.endswith("c1/bias")]
    with pytest.raises(
        UnsupportedError, match=r"'c1' was trained only in part, which a Keras config cannot express: .*; migrate to"
    ):
        migrate.migrate_checkpoint(source, tmp_path / f"x{SUFFIX[to]}", to=to, overrides={"untrained": untrained})


def test_a_part_of_a_model_that_is_passed_on_is_refused(tmp_path: Path) -> None:
    import tf_keras as keras

    layers = [keras.Input((4,)), keras.layers.Dense(5, name="c1"), keras.layers.ThresholdedReLU(0.1)]
    base = keras.Sequential([*layers, keras.layers.Dense(5)], name="base")
    model = keras.Sequential([keras.Input((4,)), base, keras.layers.Dense(3, name="head")])
    base.layers[0].trainable = False
    model.compile("adam", "mse")
    model.train_on_batch(*_batch())
    base.layers[0].trainable = True
    model.save(tmp_path / "s.h5")
    untrained = [name for name in _base(tmp_path / "s.h5") if "c1" in name]
    with pytest.raises(UnsupportedError, match="'base' was trained only in part"):
        migrate.migrate_checkpoint(
            tmp_path / "s.h5", tmp_path / "x.h5", to="tf-keras", overrides={"untrained": untrained}
        )


@pytest.mark.parametrize("to", ["keras", "tf-keras"])
def test_a_layer_that_does_more_when_it_is_frozen_is_refused(to: str, tmp_path: Path) -> None:
    """A frozen BatchNormalization normalizes by its moving statistics."""
    import keras

    _model(keras, "flat", "adam", keras.layers.BatchNormalization(name="bn")).save(source := tmp_path / "source.keras")
    with pytest.raises(UnsupportedError, match="'bn' is not trained, and not frozen in its config: it normalizes by"):
        migrate.migrate_checkpoint(source, tmp_path / f"x{SUFFIX[to]}", to=to, overrides={"untrained": _base(source)})


@pytest.mark.usefixtures("loaded_here")
@pytest.mark.parametrize("to", ["keras", "tf-keras"])
def test_variables_without_slots_are_no_difference(to: str, tmp_path: Path) -> None:
    """Until somebody says whether they are trained, either is as right, and the report is approximate."""
    import keras

    between = keras.layers.BatchNormalization(name="bn")
    _model(keras, "flat", "adam", between).save(source := tmp_path / "source.keras")
    report = migrate.migrate_checkpoint(source, dest := tmp_path / f"model{SUFFIX[to]}", to=to)
    assert report.fidelity == "approximate"
    assert not migrate.verify(source, dest).differences


def test_masks_and_thresholds_of_pruning_are_not_trained() -> None:
    """`trainable` of the wrapper says nothing of them."""
    inner = {"class_name": "Dense", "config": {"name": "dense", "trainable": True}}
    layer = {"class_name": "PruneLowMagnitude", "config": {"name": "prune_low_magnitude_dense", "layer": inner}}
    scope = "prune_low_magnitude_dense"
    weights = [f"{scope}/{name}:0" for name in ("dense/kernel", "bias", "mask", "threshold", "pruning_step")]
    assert trainable_flags(layer, weights) == [True, True, False, False, False]
    assert trainable_flags({**layer, "class_name": "Own"}, weights[2:3]) == [True]
