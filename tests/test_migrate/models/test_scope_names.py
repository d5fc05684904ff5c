"""Names with which a target could not be trained on TensorFlow: Keras itself says which."""

from __future__ import annotations

import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import h5py
import keras
import pytest
import tensorflow as tf
import tf_keras

import migrate
from migrate.models import scope_names
from optim.errors import UnsupportedError
from tests.places import CORPUS
from tests.test_migrate.models.test_training import SUFFIX

NAMES = ["Dense 1", "d(x)", "_d", "d-1", "d.1", "d:0", "d>x", "dé", "d\\x", "1d", ".d", "-d", "d+x", "d,x"]


def _trains(library: Any, model_name: str, layer_name: str) -> bool:
    try:
        inputs = library.Input((3,), name="any name (x)")
        model = library.Model(inputs, library.layers.Dense(2, name=layer_name)(inputs), name=model_name)
        tf.function(model)(tf.ones((2, 3)))
    except (ValueError, tf.errors.InvalidArgumentError):
        return False
    finally:
        library.backend.clear_session()  # Keras 3 is still in the scope that was refused
    return True


def _what_trains() -> dict[tuple[str, str, str], bool]:
    """What Keras says, by library, name of the model and name of the layer."""
    libraries = ((module.__name__, module) for module in (keras, tf_keras))
    pairs = [("model", name) for name in NAMES] + [(name, "layer") for name in NAMES if "\\" not in name]
    return {(called, *pair): _trains(library, *pair) for called, library in libraries for pair in pairs}


def _is_taken(library: str, model_name: str, layer_name: str) -> bool:
    layers = [("InputLayer", "any name (x)"), ("Dense", layer_name)]
    config = {"name": model_name, "layers": [{"class_name": c, "config": {"name": n}, "name": n} for c, n in layers]}
    try:
        scope_names.check({"class_name": "Functional", "config": config}, nested=library == "keras")
    except UnsupportedError:
        return False
    return True


@pytest.mark.breadth
def test_keras_trains_what_is_taken() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # what is refused leaves traces in the whole process
        trains = pool.submit(_what_trains).result()
    assert {case: _is_taken(*case) for case in trains} == trains
    assert set(trains.values()) == {True, False}


@pytest.mark.parametrize("to", ["keras", "tf-keras"])
@pytest.mark.usefixtures("loaded_here")
def test_a_model_that_keras_2_called_so_gets_another_name(to: Any, tmp_path: Path, load_case: Any) -> None:
    """It was called exact, and no Keras on TensorFlow could train it; then it was refused."""
    case = load_case("keras224-adam-eps-none-nested")
    source, target = tmp_path / "model.h5", tmp_path / f"out{SUFFIX[to]}"
    shutil.copy(CORPUS / case.name / "source" / "model.h5", source)
    with h5py.File(source, "r+") as file:
        config = file.attrs["model_config"]
        file.attrs["model_config"] = config.replace('"name": "model_1"', '"name": "My model"')
    report = migrate.migrate_checkpoint(source, target, to=to)
    assert report.fidelity == "exact"
    assert any("'My model' is called 'My_model' in the target" in text for text in report.warnings)
    assert migrate.verify(source, target).ok


@pytest.mark.parametrize("to", ["keras", "tf-keras"])
def test_a_layer_that_keras_on_theano_called_so_is_refused(to: Any, tmp_path: Path) -> None:
    source = Path(shutil.copy(CORPUS / "keras224-adam-eps-none-nested" / "source" / "model.h5", tmp_path))
    with h5py.File(source, "r+") as file:
        config = file.attrs["model_config"]
        file.attrs["model_config"] = config.replace('"sequential_1"', '"My model"')
        file["model_weights"].move("sequential_1", "My model")
        names = [name.replace(b"sequential_1", b"My model") for name in file["model_weights"].attrs["layer_names"]]
        file["model_weights"].attrs["layer_names"] = names
    with pytest.raises(UnsupportedError, match="the layer is called 'My model'"):
        migrate.migrate_checkpoint(source, tmp_path / f"out{SUFFIX[to]}", to=to)
