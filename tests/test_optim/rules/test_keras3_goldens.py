"""Keras 3's golden numbers, read at test time from the `keras` that is installed, on plain and on sharded variables.

Each `<name>_test.py` beside Keras's optimizers has a `test_correctness_with_golden`: constructor arguments, ones as
variable, two gradients, and the variable after each of five steps to four digits. They are taken from its syntax tree,
because importing it would import Keras.
"""

from __future__ import annotations

import ast
import importlib.util
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.support import Place, put

TEST = "test_correctness_with_golden"
TOLERANCE = {"rtol": 5e-4, "atol": 5e-4}  # what Keras compares its own numbers with
NAMES = "SGD RMSprop Adagrad Adadelta Adam AdamW Adamax Nadam Ftrl Lion Adafactor Lamb"


@dataclass(frozen=True)
class Golden:
    arguments: dict[str, Any]
    first: np.ndarray
    then: np.ndarray
    states: np.ndarray


def _golden(name: str) -> Golden:
    spec = importlib.util.find_spec("keras")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    path = Path(spec.submodule_search_locations[0], "src", "optimizers", f"{name.lower()}_test.py")
    functions = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef) and n.name == TEST]
    assert len(functions) == 1, f"{path} has no {TEST}"
    values = {s.targets[0].id: s.value for s in functions[0].body if isinstance(s, ast.Assign)}  # type: ignore[attr-defined]
    call = values["optimizer"]
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    assert call.func.id == name
    assert not call.args
    arguments = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    arrays = {key: _array(values[key]) for key in ("first_grads", "grads", "golden", "x")}
    np.testing.assert_array_equal(arrays["x"], np.ones(10))
    assert arrays["golden"].shape == (5, 10)
    return Golden(arguments, arrays["first_grads"], arrays["grads"], arrays["golden"])


def _array(node: ast.expr) -> np.ndarray:
    """The array that a call such as `np.tile([[0.9], [0.8]], (1, 10))` or `backend.Variable(np.ones([10]))` gives."""
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Attribute)
        if node.func.attr == "Variable":
            return _array(node.args[0])
        makers = {"array": np.array, "arange": np.arange, "full": np.full, "ones": np.ones, "tile": np.tile}
        return np.asarray(makers[node.func.attr](*[ast.literal_eval(a) for a in node.args]), np.float64)
    return np.asarray(ast.literal_eval(node), np.float64)


@pytest.mark.parametrize("layout", ["plain", "replicated", "sharded"])
@pytest.mark.parametrize("name", NAMES.split())
@pytest.mark.quick(7)
def test_keras3_golden(name: str, layout: str, mesh_2: Any) -> None:
    golden = _golden(name)
    place = Place(None if layout == "plain" else mesh_2, {"x": ["x"]} if layout == "sharded" else {})
    x = place.variables({"x": np.ones(10)}, tf.float32)["x"]
    with warnings.catch_warnings():  # Keras's own calls set options that change nothing alone
        warnings.filterwarnings("ignore", "relative_step=False alone|nesterov=True changes nothing", UserWarning)
        optimizer = getattr(optim, name)(**golden.arguments)
    gradients = [golden.first, *[golden.then] * 4]
    for gradient, expected in zip(gradients, golden.states, strict=True):
        optimizer.apply_gradients([(put(gradient, place.layout("x", 1), tf.float32), x)])
        np.testing.assert_allclose(value_of(x), expected, **TOLERANCE)
