"""Find models whose layers Keras 3 sorts differently because of their masks.

Keras sorts the layers of a graph by depth, and numbers weights in that order. In Keras 3 the operations that compute a
mask count as well (`compute_mask` of `concatenate.py` and `masking.py`, `map_graph` of `ops/function.py` 3.8 and 3.15).
"""

from __future__ import annotations

from collections.abc import Iterator

from migrate.bytes.messages import some
from migrate.models import masks, operators
from migrate.models.layers import ADVICE, KINDS, MODELS
from migrate.models.normalized_config import Layer, layer_name
from optim.errors import UnsupportedError

Edge = tuple[str, str, int]
"""(layer, layer that gets something of it, operations between the two)."""
TO_MASK = ((4, 5), (4, 1))
"""Operations from an input of a Concatenate, without and with a mask, to what gets the mask: in 3.15, and in 3.8."""
TO_MASKING = 3
"""The same for a Masking."""


def check(document: Layer) -> None:
    """Raise UnsupportedError if Keras 3 would load weights of this model into other layers."""
    concatenations = {name for kind, name in masks.meetings(document) if kind == masks.CONCATENATED}
    for model in _graphs(document):
        layers = model["config"]["layers"]
        listed = [layer_name(layer) for layer in layers if _has_weights(layer)]
        for lengths in TO_MASK:
            depths = _depths(model, [*_edges(model), *_mask_edges(model, concatenations, lengths)])
            by_depth = sorted(listed, key=lambda name: -depths[name])
            moved = [name for name, other in zip(listed, by_depth, strict=True) if name != other]
            if moved:
                raise UnsupportedError(
                    f"{some(moved)}: Keras 3 sorts layers by depth, in which the operations count that compute masks,"
                    f" so it would load weights into other layers; migrate to tf-keras, or {ADVICE}"
                )


def _graphs(model: Layer) -> Iterator[Layer]:
    if "input_layers" in model["config"]:
        yield model
    for layer in model["config"]["layers"]:
        if layer["class_name"] in MODELS:
            yield from _graphs(layer)


def _has_weights(layer: Layer) -> bool:
    return layer["class_name"] in MODELS or bool(KINDS[layer["class_name"]].weights(layer["config"]))


def _edges(model: Layer) -> list[Edge]:
    layers = model["config"]["layers"]
    return [(str(end[0]), layer_name(x), 1) for x in layers for end in operators.ends(x.get("inbound_nodes") or [])]


def _mask_edges(model: Layer, concatenations: set[str], lengths: tuple[int, int]) -> Iterator[Edge]:
    """Yield the longest ways from the inputs of layers that compute a mask to the layers after them."""
    edges = _edges(model)
    masked = set(_masked(model))
    for layer in model["config"]["layers"]:
        name = layer_name(layer)
        if name not in concatenations and layer["class_name"] != "Masking":
            continue
        for source in (start for start, end, _ in edges if end == name):
            length = TO_MASKING if layer["class_name"] == "Masking" else lengths[source in masked]
            yield from ((source, end, length) for start, end, _ in edges if start == name)


def _masked(model: Layer) -> Iterator[str]:
    """Yield the layers whose outputs have a mask."""
    outputs = {"input_layers": model["config"]["input_layers"]}
    for layer in model["config"]["layers"]:
        part = {**model, "config": {**model["config"], **outputs, "output_layers": [[layer_name(layer), 0, 0]]}}
        if layer["class_name"] not in MODELS and any(kind == masks.OUTPUT for kind, _ in masks.meetings(part)):
            yield layer_name(layer)


def _depths(model: Layer, edges: list[Edge]) -> dict[str, int]:
    """Return how many operations there are between each layer and the outputs, at most."""
    depths = {layer_name(layer): 0 for layer in model["config"]["layers"]}
    for _ in depths:
        before = dict(depths)
        for start, end, length in edges:
            depths[start] = max(depths[start], depths[end] + length)
        if depths == before:
            break
    return depths
