"""Keras 2.9 as an oracle: its DTensor and experimental optimizers, where they are right, in float64.

The numbers are in tests/fixtures/goldens/keras29_goldens.npz, and keras29_goldens.py there recorded them with
TensorFlow 2.9 itself, the DTensor classes on sharded variables. Arguments are taken as they are, and `KEYWORDS` adds
what says that a formula is that of 2.9 and not of later releases.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import optim
from tests import places
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.support import Place, put_gradients

GOLDENS = np.load(places.GOLDENS / "keras29_goldens.npz")
ABOUT = json.loads(str(GOLDENS["about"]))
NAMES = ("kernel", "bias", "scale")
KEYWORDS: Mapping[str, Mapping[str, Any]] = {
    "RMSprop": {"epsilon_inside": False, "learning_rate_in_momentum": False},
}
EXACT = {"rtol": 1e-12, "atol": 1e-14}
# 2.9 takes Nadam's 0.96 through float32.
ROUNDED = {"rtol": 1e-6, "atol": 1e-7}


def _id(index: int) -> str:
    case = ABOUT["cases"][index]
    return f"{index}-{case['api']}-{case['optimizer']}"


@pytest.mark.parametrize("layout", ["plain", "mixed"])
@pytest.mark.parametrize("index", range(len(ABOUT["cases"])), ids=_id)
@pytest.mark.quick(6)
def test_same_as_keras_2_9(index: int, layout: str, request: pytest.FixtureRequest) -> None:
    case = ABOUT["cases"][index]
    name = case["optimizer"]
    place = Place.named(layout, request)
    variables = place.variables({key: GOLDENS[f"start/{key}"] for key in NAMES})
    optimizer = getattr(optim, name)(**case["arguments"], **KEYWORDS.get(name, {}))
    for step in range(ABOUT["steps"]):
        keys = {key: f"gradient/{step}/{key}" for key in NAMES}
        values = {key: GOLDENS.get(where) for key, where in keys.items()}
        if "use_ema" in case["arguments"]:  # 2.9 mixes averages up where there are gradients of None
            values = {key: np.zeros_like(GOLDENS[f"start/{key}"]) if v is None else v for key, v in values.items()}
        optimizer.apply_gradients(put_gradients(values, variables))
        for key, variable in variables.items():
            expected = GOLDENS[f"{index}/{key}"][step]
            tolerance = ROUNDED if name == "Nadam" else EXACT
            np.testing.assert_allclose(value_of(variable), expected, err_msg=f"{key}, step {step}", **tolerance)


def test_every_optimizer_of_2_9_that_is_right_is_there() -> None:
    recorded = {(case["api"], case["optimizer"]) for case in ABOUT["cases"]}
    both = {"Adadelta", "Adagrad", "Adam", "RMSprop", "SGD"}
    experimental = both | {"Adamax", "Nadam", "Ftrl"}  # AdamW nearly sets weights to zero at every step there
    assert recorded == {("dtensor", name) for name in both} | {("experimental", name) for name in experimental}
