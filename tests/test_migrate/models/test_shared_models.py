"""Models that stand several times in another: the target computes what the source does, by both Keras releases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from tests.helpers.breadth import covering

PLANS = ("both", "swapped", "first", "last", "chained")


def _inner(library: Any, kind: str) -> Any:
    layers = [library.layers.Input((3,)), library.layers.Dense(3, name="inside")]
    if kind == "Functional":
        return library.Model(layers[0], layers[1](layers[0]), name="inner")
    return library.Sequential(layers[kind == "deferred" :], name="inner")


def _model(library: Any, kind: str, plan: str) -> Any:
    """`inner` is called for two inputs, and what it returns is an output in a way that `plan` names."""
    inner, head = _inner(library, kind), library.layers.Dense(1, name="head")
    inputs = [library.layers.Input((3,), name=name) for name in "ab"]
    x, y = map(inner, inputs)
    outputs = {
        "both": lambda: [x, y],
        "swapped": lambda: [y, x],
        "first": lambda: [x, head(y)],
        "last": lambda: [head(x), y],
        "chained": lambda: [inner(x), head(y)],
    }[plan]()
    model = library.Model(inputs, outputs)
    model.compile("sgd", ["mse", "mse"])
    return model


@covering(1, ways=["tf_keras keras", "keras tf_keras"], kind=["Functional", "Sequential", "deferred"], plan=PLANS)
def test_outputs_of_a_shared_model_stay_where_they_were(ways: str, kind: str, plan: str, tmp_path: Path) -> None:
    source, target = (pytest.importorskip(name) for name in ways.split())
    paths = [str(tmp_path / {"keras": "m.keras", "tf_keras": "m.h5"}[name]) for name in ways.split()]
    paths[1] = str(tmp_path / f"new{Path(paths[1]).suffix}")
    model = _model(source, kind, plan)
    model.save(paths[0])
    report = migrate.migrate_checkpoint(*paths, to={"keras": "keras", "tf_keras": "tf-keras"}[target.__name__])
    assert report.fidelity == "exact", report.reasons
    batch = [np.random.default_rng(i).normal(size=(2, 3)).astype(np.float32) for i in range(2)]
    for got, wanted in zip(target.models.load_model(paths[1])(batch), model(batch), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
