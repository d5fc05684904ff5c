"""An option of a live optimizer that was changed after it had made its slots: the message says what to type."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from dtopt_cli.options import Hints
from migrate.bytes.messages import LONGEST
from optim.errors import DtoptError


def _saved(path: Path, name: str, built: dict[str, Any], changed: dict[str, Any]) -> Path:
    import keras

    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    optimizer = getattr(keras.optimizers, name)(0.1, **built)
    model.compile(optimizer, "mse")
    batch = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)
    model.train_on_batch(*batch)
    for key, value in changed.items():
        setattr(optimizer, key, value)
    model.train_on_batch(*batch)
    model.save(path)
    return path


@pytest.mark.parametrize(
    ("name", "built", "changed", "typed"),
    [
        ("SGD", {"momentum": 0.9}, {"momentum": 0.0}, {"momentum": 0.9}),
        ("RMSprop", {"momentum": 0.9}, {"momentum": 0.0}, {"momentum": 0.9}),
        ("RMSprop", {"centered": True}, {"centered": False}, {"centered": True}),
        (
            "RMSprop",
            {"momentum": 0.9, "centered": True},
            {"momentum": 0.0, "centered": False},
            {"momentum": 0.9, "centered": True},
        ),
        ("Adam", {"amsgrad": True}, {"amsgrad": False}, {"amsgrad": True}),
        ("SGD", {}, {"momentum": 0.9}, {"momentum": 0.0}),
    ],
)
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.quick(3)
def test_what_is_said_is_what_goes_on(
    name: str, built: dict[str, Any], changed: dict[str, Any], typed: dict[str, Any], suffix: str, tmp_path: Path
) -> None:
    source = _saved(tmp_path / f"model{suffix}", name, built, changed)
    with pytest.raises(DtoptError) as caught:
        migrate.read(source)
    text = str(caught.value)
    assert len(text) <= LONGEST
    assert "--generation" not in text
    assert "tf.train" not in text
    if suffix == ".keras" and (name, len(built)) == ("RMSprop", 1):  # which has no names
        assert "--set momentum=VALUE or --set centered=true" in text
        text = text.replace("--set centered=true" if "momentum" in built else "--set momentum=VALUE", "")
    words = re.findall(r"--set (\w+=[\w.]+)", text)
    overrides = Hints(overrides=[word.replace("VALUE", "0.9") for word in words]).arguments()["overrides"]
    assert typed.items() <= overrides.items()
    state = migrate.read(source, overrides=overrides)
    assert state.fidelity == "exact"
    assert state.iterations == 2
    assert bool(state.slots) == (typed.get("momentum") != 0.0)
