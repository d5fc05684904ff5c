"""Find layers that behave differently when they are called with `training=True`.

A functional model of Keras 3 passes its own `training` to every layer in it, regardless of the call that made the model
(`operation_fn` in `keras/src/models/functional.py` 3.0 to 3.15); Keras 2 uses the value of that call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from migrate.models import operators
from migrate.models.layers import MODELS, OPERATORS, RANDOM
from migrate.models.normalized_config import Layer, Leaf, layer_name, leaves

RATES = ("rate", "dropout", "recurrent_dropout", "stddev")
PARTS = ("layer", "backward_layer", "cell")


def held_back(model: Layer) -> Iterator[str]:
    """Yield the layers of a model that compute something else in training, and are called with training=False."""
    for layer in model["config"]["layers"]:
        if layer["class_name"] in MODELS:
            yield from held_back(layer)
        if layer["class_name"] in OPERATORS:
            continue
        ends = [end for node in layer.get("inbound_nodes") or [] for end in operators.ends(node) if len(end) > 3]
        if any(end[3].get("training") is False for end in ends):
            yield from acting_in_training(layer)


def acting_in_training(layer: Layer) -> list[str]:
    """Names of such layers in `layer`, or its own."""
    config = layer["config"]
    if layer["class_name"] in MODELS:
        inside = leaves(layer, frozen=config.get("trainable") is False)
    else:
        inside = iter([Leaf((layer_name(layer),), layer["class_name"], config, config.get("trainable") is False)])
    return [leaf.path[-1] for leaf in inside if _acts(leaf.class_name, leaf.config, leaf.frozen)]


def _acts(class_name: str, config: Mapping[str, Any], frozen: bool) -> bool:
    if class_name == "BatchNormalization":
        return not frozen  # a frozen one uses its moving statistics in both
    if class_name in RANDOM or any(config.get(key) for key in RATES):
        return True
    parts = (*(config.get(key) for key in PARTS), *(config.get("cells") or ()))
    return any(_acts(part["class_name"], part["config"], frozen) for part in parts if isinstance(part, Mapping))
