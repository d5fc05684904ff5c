"""Find recurrent layers that take one step at a time: their recurrent kernels multiply a state of zeros."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migrate.models.normalized_config import Layer, canonical, inner_layers
from migrate.models.weights import SHAPE_KEPT
from optim.errors import UnsupportedError

RECURRENT = ("LSTM", "GRU", "SimpleRNN", "CuDNNLSTM", "CuDNNGRU")
KEPT = (*SHAPE_KEPT, "InputLayer", "Dense", "TimeDistributed")
"""Layers that take one step and return one."""


def takes_one_step(config: Mapping[str, Any], generation: str | None) -> bool:
    """Return whether a Sequential model feeds one time step to each of its recurrent layers, from a state of zeros.

    Their recurrent kernels then have no gradient.
    """
    try:
        document = canonical(config, generation)
    except UnsupportedError:
        return False
    layers = document["config"]["layers"] if document["class_name"] == "Sequential" else []
    places = [place for place, layer in enumerate(layers) if _recurrent(layer)]
    shapes = [shape for layer in layers[:2] if (shape := layer["config"].get("batch_input_shape"))]
    return (
        bool(places)
        and bool(shapes)
        and len(shapes[0]) == 3
        and shapes[0][1] == 1
        and all(layer["class_name"] in KEPT or _is_stateless(layer) for layer in layers[: places[-1] + 1])
    )


def _recurrent(layer: Layer) -> list[Layer]:
    """Return the recurrent layers that a layer is or, as Bidirectional, has."""
    layers = inner_layers(layer) if layer["class_name"] == "Bidirectional" else [layer]
    return [inner for inner in layers if inner["class_name"] in RECURRENT]


def _is_stateless(layer: Layer) -> bool:
    layers = _recurrent(layer)
    return bool(layers) and not any(inner["config"].get("stateful") for inner in layers)
