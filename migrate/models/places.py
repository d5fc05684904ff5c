"""Find each layer in files of Keras's saving library: `layers/dense_1` is a class and a counter, not the layer's name.

Source: `saving/saving_lib.py::_save_container_state` of tf.keras 2.12 - 2.15, tf_keras 2.16 - 2.21, Keras 3.0 - 3.15.
"""

from __future__ import annotations

from collections.abc import Iterator

from migrate.models.layers import KINDS, MODELS
from migrate.models.normalized_config import Layer, layer_name
from migrate.readers.keras.layers import snake_case


def places(
    model: Layer, path: tuple[str, ...] = (), below: str = "", twice: bool = False
) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """(path as in `canonical.Leaf`, group, layer's own name) of every layer, including models, in `model.layers`'s
    order.

    Args:
      twice: whether layers with weights are counted twice. tf.keras 2.12 and 2.13 do so, because they save
        `_layer_checkpoint_dependencies`, which has each layer under two keys (`engine/functional.py`); 2.14 does not.
    """
    used: dict[str, int] = {}
    for layer in model["config"]["layers"]:
        plain = snake_case(layer["class_name"])
        count = used[plain] = used.get(plain, -1) + 1
        group = f"{below}layers/{plain}_{count}" if count else f"{below}layers/{plain}"
        used[plain] += twice and _has_weights(layer)
        here = (*path, layer_name(layer))
        yield here, group, layer_name(layer)
        if layer["class_name"] in MODELS:
            yield from places(layer, here, group + "/", twice)


def _has_weights(layer: Layer) -> bool:
    if layer["class_name"] in MODELS:
        return any(map(_has_weights, layer["config"]["layers"]))
    return bool(KINDS[layer["class_name"]].weights(layer["config"]))
