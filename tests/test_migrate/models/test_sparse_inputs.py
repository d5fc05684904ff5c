"""Dense layers that are given sparse tensors: which they are, and that rows of their kernels stay as they are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import pytest

import migrate
from migrate.models import sparse_inputs
from migrate.releases.versions import Versions
from tests.places import CORPUS

ADAMAX = CORPUS / "tf115-adamax-mlp" / "source" / "model.h5"
KERAS = {"keras": "2.7.0"}


def _layer(class_name: str, name: str, *inputs: str, **config: Any) -> dict[str, Any]:
    nodes = [[[input_name, 0, 0, {}] for input_name in inputs]] if inputs else []
    return {"class_name": class_name, "name": name, "config": {"name": name, **config}, "inbound_nodes": nodes}


def _model(*layers: dict[str, Any]) -> dict[str, Any]:
    return {"class_name": "Functional", "config": {"name": "model", "layers": list(layers)}}


INPUT = _layer("InputLayer", "x", sparse=True)
FED = _model(INPUT, _layer("Dense", "d1", "x"), _layer("Dense", "d2", "d1"))


@pytest.mark.parametrize(
    ("model", "versions", "dense", "loose"),
    [
        (FED, KERAS, {"d1"}, False),
        (FED, {"keras": "2.4.0"}, set(), False),
        (FED, {"tensorflow": "2.9.1"}, {"d1"}, False),
        (FED, {}, {"d1"}, True),
        (_model(_layer("InputLayer", "x", sparse=False), _layer("Dense", "d1", "x")), {}, set(), False),
        (_model(INPUT, _layer("Dropout", "drop", "x"), _layer("Dense", "d1", "drop")), KERAS, set(), True),
        (_model(INPUT, {**FED, "name": "inner", "inbound_nodes": [[["x", 0, 0, {}]]]}), KERAS, {"d1"}, False),
    ],
)
def test_layers_behind_sparse_ones_are_found(
    model: dict[str, Any], versions: dict[str, str], dense: set[str], loose: bool
) -> None:
    assert sparse_inputs.fed(model, "optimizer_v2", Versions(**versions)) == (dense, loose)


def test_a_sequential_feeds_the_layer_after_it() -> None:
    layers = [_layer("InputLayer", "x", sparse=True), _layer("Dense", "d1"), _layer("Dense", "d2")]
    bare = [{key: value for key, value in layer.items() if key != "inbound_nodes"} for layer in layers]
    assert sparse_inputs.fed(
        {"class_name": "Sequential", "config": {"layers": bare}}, "optimizer_v2", Versions(**KERAS)
    ) == (
        {"d1"},
        False,
    )


def _with_sparse_input(path: Path, version: str, between: str | None = None) -> str:
    """A model of TF 1.15 as a later release writes it, whose first layer takes sparse tensors."""
    shutil.copy(ADAMAX, path)
    with h5py.File(path, "r+") as file:
        model = json.loads(file.attrs["model_config"])
        layers = model["config"]["layers"]
        name = layers[0]["config"]["name"]
        settings = {"name": "given", "batch_input_shape": [None, 5], "sparse": True}
        middle = [{"class_name": between, "config": {"name": "middle"}}] if between else []
        model["config"]["layers"] = [{"class_name": "InputLayer", "config": settings}, *middle, *layers]
        file.attrs["model_config"] = json.dumps(model)
        file.attrs["keras_version"] = version
    return str(name)


def test_rows_that_no_batch_names_stay_as_they_are(tmp_path: Path) -> None:
    """Run in TF 2.4, 2.7 and 2.15: they were moved by momentum and by Adamax in exact reports, 15% off after a step."""
    source = tmp_path / "model.h5"
    name = _with_sparse_input(source, "2.7.0")
    state = migrate.read(source)
    assert state.hyperparameters["lazy_rows"] == [f"^{name}/kernel$"]
    assert state.fidelity == "exact", state.reasons
    _with_sparse_input(source, "2.4.0")
    assert "lazy_rows" not in migrate.read(source).hyperparameters
    _with_sparse_input(source, "2.7.0", "Dropout")
    [reason] = migrate.read(source).reasons
    assert reason.startswith(f"{name}/kernel, ")
    assert "does not show whether their gradients are sparse" in reason
