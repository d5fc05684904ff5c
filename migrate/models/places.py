"""Where Keras's saving library keeps each layer: `layers/dense_1`, a class and a counter, not the layer's name.

Source: `saving/saving_lib.py::_save_container_state` of tf_keras 2.14 - 2.21 and Keras 3.0 - 3.15.
"""

from __future__ import annotations

from collections.abc import Iterator

from migrate.models.canonical import Layer, layer_name
from migrate.models.layers import MODELS
from migrate.readers.keras.layers import snake_case


def places(model: Layer, path: tuple[str, ...] = (), below: str = "") -> Iterator[tuple[tuple[str, ...], str, str]]:
    """(path as in `canonical.Leaf`, group, layer's own name) of every layer, models too, as `model.layers` has them."""
    used: dict[str, int] = {}
    for layer in model["config"]["layers"]:
        plain = snake_case(layer["class_name"])
        count = used[plain] = used.get(plain, -1) + 1
        group = f"{below}layers/{plain}_{count}" if count else f"{below}layers/{plain}"
        here = (*path, layer_name(layer))
        yield here, group, layer_name(layer)
        if layer["class_name"] in MODELS:
            yield from places(layer, here, group + "/")
