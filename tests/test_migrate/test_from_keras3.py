"""A model of Keras 3 in the terms of tf_keras: what it cannot say is refused, and what it can is said."""

from __future__ import annotations

from typing import Any

import pytest

from migrate.models import from_keras3
from migrate.models.compiled import compile_arguments
from optim.errors import UnsupportedError

POLICIES = {"class_name": "DTypePolicyMap", "config": {"policy_map": {}}}
LEAKY = {"class_name": "LeakyReLU", "config": {"name": "l", "trainable": True, "negative_slope": 0.2}}


def tensor(name: str) -> dict[str, Any]:
    return {"class_name": "__keras_tensor__", "config": {"shape": [None, 4], "keras_history": [name, 0, 0]}}


def made(class_name: str, **config: Any) -> dict[str, Any]:
    """The second layer of a graph of two, as tf_keras has it."""
    layers = [
        {"class_name": "InputLayer", "name": "x", "config": {"name": "x"}, "inbound_nodes": []},
        {
            "class_name": class_name,
            "name": "y",
            "config": {"name": "y", **config},
            "inbound_nodes": [{"args": [tensor("x")], "kwargs": {}}],
        },
    ]
    ends = {"input_layers": ["x", 0, 0], "output_layers": ["y", 0, 0]}
    model = {"class_name": "Functional", "config": {"name": "m", "layers": layers, **ends}}
    layer: dict[str, Any] = from_keras3.older(model)["config"]["layers"][1]
    return layer


@pytest.mark.parametrize(
    ("class_name", "config"),
    [
        ("Elu", {"alpha": 0.5}),
        ("Mean", {"axis": 1, "keepdims": False, "of_a_later_release": 3}),
        ("Dense", {"trainable": True, "dtype": POLICIES}),
        ("AlphaDropout", {"trainable": True, "noise_shape": [None, 1]}),
    ],
)
def test_what_tf_keras_cannot_say_is_refused(class_name: str, config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="tf_keras"):
        made(class_name, **config)


def test_operations_and_layers_are_told_apart() -> None:
    assert made("Elu", alpha=1.0)["config"]["function"] == "nn.elu"
    assert made("SpatialDropout1D", rate=0.5)["class_name"] == "SpatialDropout1D"


def test_a_layer_for_an_activation_is_said_as_a_layer() -> None:
    assert made("Dense", trainable=True, activation=LEAKY)["config"]["activation"]["config"]["alpha"] == 0.2


@pytest.mark.parametrize(
    ("loss", "keras3", "tf_keras"),
    [
        ({"class_name": "function", "config": "mean_squared_error"}, "mean_squared_error", "mean_squared_error"),
        ("dice", "dice", None),
        ("Tversky", "tversky", None),
        ({"class_name": "Circle", "config": {"gamma": 10.0}}, "Circle", None),
        ({"class_name": "MeanSquaredError", "config": {"reduction": "mean"}}, "MeanSquaredError", None),
    ],
)
def test_losses_are_carried_where_the_target_has_them(loss: Any, keras3: str, tf_keras: str | None) -> None:
    for for_keras3, wanted in ((True, keras3), (False, tf_keras)):
        notes: list[str] = []
        found = compile_arguments({"loss": loss}, notes, for_keras3)["loss"]
        assert (found["class_name"] if isinstance(found, dict) else found) == wanted
        assert bool(notes) == (wanted is None)
