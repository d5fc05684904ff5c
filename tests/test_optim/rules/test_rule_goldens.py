"""The newer algorithms against their reference implementations, in float64, plain and on a mesh.

The numbers are in tests/fixtures/goldens/rule_goldens_*.npz, and rule_goldens.py there recorded them: TensorFlow
Addons, tf-models, torch, facebookresearch's schedulefree, pytorch_optimizer, timm, optax, tf.contrib and Keras 3.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from tests.helpers.dtensor_asserts import value_of
from tests.places import GOLDENS
from tests.test_optim.cases import WHOLE
from tests.test_optim.support import Place, put_gradients

SOURCES = ("tfa", "torch", "optax", "contrib", "keras", "tfa_options", "torch_decay", "proximal", "tfa_bets", "tfm")
SOURCES += ("keras_late", "keras_muon", "timm", "optax_clip", "contrib_shampoo", "soap")
FILES = {source: np.load(GOLDENS / f"rule_goldens_{source}.npz") for source in SOURCES}
ABOUT = {source: json.loads(str(file["about"])) for source, file in FILES.items()}
ROWS = [(source, i) for source, about in ABOUT.items() for i in range(len(about["configurations"]))]
LAYOUTS = {"plain": None, "mesh": {"kernel": ["batch", "model"], "bias": ["model"]}}


def _optimizer(row: tuple[str, int]) -> str:
    return ABOUT[row[0]]["configurations"][row[1]]["optimizer"]


def _on_a_mesh_too(row: tuple[str, int]) -> bool:
    """The first of each optimizer that looks at whole variables; test_conformance.py has the others on a mesh.

    Not SOAP, which TensorFlow compiles for ten seconds there.
    """
    same = [each for each in ROWS if _optimizer(each) == _optimizer(row)]
    return _optimizer(row) in WHOLE and row == same[0] and _optimizer(row) != "SOAP"


@pytest.mark.parametrize(
    ("row", "layout"),
    [
        pytest.param(
            row,
            layout,
            marks=() if layout == "plain" or _on_a_mesh_too(row) else pytest.mark.breadth,
            id=f"{row[0]}-{_optimizer(row)}-{row[1]}-{layout}",
        )
        for row in ROWS
        for layout in LAYOUTS
    ],
)
@pytest.mark.quick(10)
def test_every_step_is_that_of_the_reference(row: tuple[str, int], layout: str, request: Any) -> None:
    source, index = row
    file, configuration = FILES[source], ABOUT[source]["configurations"][index]
    names = [key.removeprefix("start/") for key in file if key.startswith("start/")]
    specs = LAYOUTS[layout]
    place = Place(None if specs is None else request.getfixturevalue("mesh_2x2"), specs or {})
    dtype = file[f"{index}/kernel"].dtype
    close = {"rtol": 1e-11, "atol": 1e-12} if dtype == np.float64 else {"rtol": 1e-5, "atol": 1e-6}
    variables = place.variables({name: file[f"start/{name}"] for name in names}, tf.as_dtype(dtype))
    optimizer = getattr(optim, configuration["optimizer"])(**configuration["arguments"])
    for step in range(ABOUT[source]["steps"]):
        gradients = {name: file[f"gradient/{step}/{name}"] for name in names}
        optimizer.apply_gradients(put_gradients(gradients, variables))
        for name, variable in variables.items():
            expected = file[f"{index}/{name}"][step]
            np.testing.assert_allclose(value_of(variable), expected, **close, err_msg=f"{name}, {step}")
    for name, variable in variables.items():
        if f"{index}/average/{name}" in file:
            has_mean = optimizer.stochastic_average is not None
            average = value_of(optimizer.get_slot(variable, "average") if has_mean else optimizer.average_of(variable))
            np.testing.assert_allclose(average, file[f"{index}/average/{name}"], **close)


def test_each_algorithm_has_a_reference() -> None:
    found = {configuration["optimizer"] for about in ABOUT.values() for configuration in about["configurations"]}
    of_options = {"Adam", "SGD", "Adagrad", "Adadelta", "Lion"}  # what options make of them
    assert found - of_options == {
        "RectifiedAdam", "AdaBelief", "Yogi", "ProximalAdagrad", "NovoGrad", "LARS", "Adan", "ScheduleFreeAdamW",
        "COCOB", "ConditionalGradient", "Muon", "Shampoo", "SOAP"
    }  # fmt: skip
