"""Models of any Keras in one form, and what of them Keras 3 has not got."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
from migrate.models.normalized_config import canonical
from migrate.models.to_keras3 import Translation, to_keras3
from optim.errors import UnsupportedError
from tests.places import FEATURES

SUFFIX = {"keras": ".keras", "tf-keras": ".h5"}


def model(*layers: tuple[str, dict[str, Any]], **config: Any) -> dict[str, Any]:
    named = [{"class_name": name, "config": {"name": f"l{i}", **settings}} for i, (name, settings) in enumerate(layers)]
    return {"class_name": "Sequential", "config": {"name": "m", "layers": named, **config}}


def test_what_is_thawed_in_a_frozen_model_of_tf_keras_is_frozen() -> None:
    """There it is not trained, and today's Keras and tf_keras train it when they load it."""
    inner = model(("Dense", {"units": 1, "axis": -1, "trainable": True}), trainable=False)
    outer = {
        "class_name": "Sequential",
        "config": {"name": "o", "layers": [inner, *model(("Dense", {"units": 1}))["config"]["layers"]]},
    }
    document = canonical(outer, "optimizer")
    assert document["config"]["layers"][0]["config"]["layers"][0]["config"]["trainable"] is False
    inner["config"]["layers"][0]["class_name"] = "BatchNormalization"
    with pytest.raises(UnsupportedError, match="l0"):
        canonical(outer, "optimizer")


@pytest.mark.parametrize("suffix", ["keras", "h5"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.quick(2)
def test_what_is_thawed_in_a_frozen_model_of_keras_3_is_trained(optimizer: str, suffix: str, tmp_path: Path) -> None:
    import keras

    entry, outer_entry = keras.Input((4,)), keras.Input((4,))
    inner = keras.Model(entry, keras.layers.Dense(7)(keras.layers.Dense(5, name="thawed")(entry)))
    trained = keras.Model(outer_entry, keras.layers.Dense(2)(inner(outer_entry)))
    inner.trainable = False
    inner.get_layer("thawed").trainable = True
    trained.compile(optimizer, "mse")
    trained.train_on_batch(np.ones((3, 4)), np.ones((3, 2)))
    trained.save(tmp_path / f"m.{suffix}")
    state = migrate.read(tmp_path / f"m.{suffix}")
    assert state.fidelity == "exact"
    shapes = [v.shape for v in state.variables if v.trainable]
    assert shapes == [tuple(v.shape) for v in trained.trainable_variables] == [(4, 5), (5,), (7, 2), (2,)]


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (("SeparableConv1D", {"padding": "causal"}), "padding 'causal'"),
        (("EinsumDense", {"output_shape": [None, 3], "equation": "abc,cd->abd"}), "size of None"),
    ],
)
def test_what_keras_3_could_not_load_is_refused(layer: tuple[str, dict[str, Any]], why: str) -> None:
    document = canonical(model(layer, ("Flatten", {}), build_input_shape=[None, 5, 4]), "optimizer")
    with pytest.raises(UnsupportedError, match=why):
        to_keras3(document, Translation())


@pytest.mark.parametrize("suffix", ["keras", "h5"])
@pytest.mark.parametrize("name", ["Softmax", "Attention", "LayerNormalization", "GaussianNoise"])
@pytest.mark.quick(3)
def test_a_layer_of_ones_own_with_the_name_of_one_of_keras_is_not_taken_for_it(
    name: str, suffix: str, tmp_path: Path
) -> None:
    """Unregistered, and registered under the package that Keras gives where none is named."""
    import tf_keras

    custom_layer = type(name, (tf_keras.layers.Layer,), {"call": lambda self, x: 3 * x})
    if name == "GaussianNoise":
        custom_layer = tf_keras.utils.register_keras_serializable()(custom_layer)
    entry = tf_keras.Input((4,))
    trained = tf_keras.Model(entry, tf_keras.layers.Dense(2)(custom_layer()(entry)))
    trained.compile("adam", "mse")
    trained.train_on_batch(np.ones((2, 4)), np.ones((2, 2)))
    source = tmp_path / f"source.{suffix}"
    trained.save(source)
    with pytest.raises(UnsupportedError, match=f"is a .*{name}"):
        migrate.migrate_checkpoint(source, tmp_path / "made.keras", to="keras")
    try:
        report = migrate.migrate_checkpoint(source, tmp_path / "made.h5", to="tf-keras")
    except UnsupportedError:
        return
    assert report.fidelity == "approximate"
    assert f"{name}: not Keras's own" in report.reasons[0]


@pytest.mark.usefixtures("loaded_here")
@pytest.mark.parametrize("to", SUFFIX)
def test_a_table_whose_config_says_the_dtype_of_its_rows_is_loaded(to: str, tmp_path: Path) -> None:
    """As Keras 2.0.0 and TF 1.2 have it; TF 1 also gives it an initializer without a maximum."""
    source, target = tmp_path / "source.h5", tmp_path / f"model{SUFFIX[to]}"
    shutil.copy(FEATURES / "tf1.10.1-rows-clipped.h5", source)
    with h5py.File(source, "r+") as file:
        model = json.loads(file.attrs["model_config"])
        (table,) = (layer["config"] for layer in model["config"]["layers"] if layer["class_name"] == "Embedding")
        assert table["embeddings_initializer"]["config"]["maxval"] is None
        table["dtype"] = "int32"
        file.attrs["model_config"] = json.dumps(model).encode()
    migrate.migrate_checkpoint(source, target, to=to)
    assert migrate.verify(source, target).ok
