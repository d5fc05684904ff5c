"""Bring models of Keras 1 and of Keras 2 up to 2.2.2 into the form of later ones.

There a Sequential is a list of layers without a name. It may begin with a Merge that contains its branches, which later
Keras writes as a graph of layers. Source: `keras/models.py` 1.2.2 and 2.0.8, `keras/legacy/layers.py` 2.0.8.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from migrate.readers.keras.model import layer_name, objects, sublayers

MERGE, SEQUENTIAL = "Merge", "Sequential"
MODES = {
    "sum": "Add",
    "mul": "Multiply",
    "ave": "Average",
    "max": "Maximum",
    "concat": "Concatenate",
    "dot": "Dot",
}
"""Modes of a Merge -> the layer of Keras 2 that does the same. No layer does `cos`, which adds a dim."""
SETTINGS = {"Concatenate": {"axis": "concat_axis"}, "Dot": {"axes": "dot_axes"}}
"""Class -> its argument -> that of Merge."""

Layer = dict[str, Any]


def later(model: Any, order: Sequence[str]) -> Any:
    """Return a model's config in which every model is a mapping with a name.

    Args:
      model: `{"class_name", "config"}` from the file; anything else is returned as it is.
      order: the file's list of top-level layers, which has names that a Sequential in a Sequential lacks.
    """
    if not isinstance(model, Mapping) or not any(_is_early(layer) for layer in objects(model)):
        return model
    model = copy.deepcopy(dict(model))
    flat = list(_flat(model))
    names = list(map(layer_name, flat))
    if len(flat) == len(order) and all(flat_name in ("", name) for flat_name, name in zip(names, order, strict=True)):
        for layer, name in zip(flat, order, strict=True):
            layer["name"] = name
    return _converted(model, {layer_name(layer) for layer in objects(model)})


def begins_with_merge(model: Any) -> bool:
    """Whether a model, as the file has it, is a Sequential that begins with a Merge of branches."""
    return isinstance(model, Mapping) and bool(_branches(model))


def _is_early(item: Mapping[str, Any]) -> bool:
    return item.get("class_name") == MERGE or (item.get("class_name") == SEQUENTIAL and _is_list(item.get("config")))


def _is_list(config: Any) -> bool:
    return isinstance(config, list) and all(isinstance(layer, dict) for layer in config)


def _branches(model: Mapping[str, Any]) -> list[Layer]:
    """The models or layers that the Merge at the beginning of a Sequential merges; empty without one."""
    layers = model["config"] if _is_list(model.get("config")) else []
    is_merged = layers and model.get("class_name") == SEQUENTIAL and layers[0].get("class_name") == MERGE
    branches = layers[0]["config"].get("layers") if is_merged and isinstance(layers[0].get("config"), dict) else None
    return list(branches) if isinstance(branches, list) and _is_list(branches) else []


def _flat(model: Layer) -> Iterator[Layer]:
    """Yield the layers of a model as files list them: with those of its branches in the place of the Merge."""
    branches = _branches(model)
    for branch in branches:
        yield from [branch] if sublayers(branch.get("config")) is None else _flat(branch)
    listed = sublayers(model.get("config")) or []
    yield from (layer for layer in listed[bool(branches) :] if isinstance(layer, dict))


def _converted(layer: Layer, names: set[str], may_branch: bool = True) -> Layer:
    """Return a layer or a model in the later form.

    Args:
      names: of all layers.
      may_branch: whether a model may have several inputs. The first layer of a Sequential may not, and keeps its Merge.
    """
    config = layer.get("config")
    if layer.get("class_name") == MERGE and isinstance(config, dict) and "layers" not in config:
        return _merging(layer, config)
    if _is_list(config) and layer.get("class_name") == SEQUENTIAL:
        name = layer_name(layer) or _unused(names)
        graph = _graph(layer, name) if may_branch and _branches(layer) else None
        layer = graph or {**layer, "config": {"name": name, "layers": config}}
    listed = sublayers(layer["config"]) if isinstance(layer.get("config"), dict) else None
    if listed is None:
        return layer
    in_row = layer.get("class_name") == SEQUENTIAL
    layers = [_converted(dict(sublayer), names, not (in_row and i == 0)) for i, sublayer in enumerate(listed)]
    return {**layer, "config": {**layer["config"], "layers": layers}}


def _unused(names: set[str]) -> str:
    """A name as Keras gives it, which no layer has."""
    numbers = (f"sequential_{i}" if i else "sequential" for i in range(len(names) + 1))
    name = next(candidate for candidate in numbers if candidate not in names)
    names.add(name)
    return name


def _merging(layer: Layer, config: Mapping[str, Any]) -> Layer:
    """The layer of Keras 2 instead of a Merge; a Merge by a function of the user's stays."""
    kind = MODES.get(str(config.get("mode"))) if config.get("mode_type", "raw") == "raw" else None
    if kind is None:
        return layer
    settings = {key: config.get(old) for key, old in SETTINGS.get(kind, {}).items()}
    replacement = {**layer, "class_name": kind, "config": {"name": config.get("name"), "trainable": True, **settings}}
    if "inbound_nodes" in layer:  # `merge` calls it with the masks that it gets anyway
        replacement["inbound_nodes"] = [[list(end[:3]) for end in node] for node in layer["inbound_nodes"]]
    return replacement


def _graph(model: Layer, name: str) -> Layer | None:
    """A Sequential that begins with a Merge as a graph of layers, in the order of their depth as Keras sorts them; None
    if it has a layer twice, or an input without a shape."""
    layers: list[Layer] = []
    inputs: list[str] = []
    end = _chained(model, layers, inputs)
    names = [layer_name(layer) for layer in layers]
    if end is None or len(set(names)) < len(names) or any(len(layer["inbound_nodes"]) > 1 for layer in layers):
        return None
    depths = dict.fromkeys(names, 0)
    for layer in reversed(layers):  # each comes after its inputs
        for node in layer["inbound_nodes"]:
            for source in node:
                depths[source[0]] = max(depths[source[0]], depths[layer_name(layer)] + 1)
    layers.sort(key=lambda layer: -depths[layer_name(layer)])
    ends = {"input_layers": [[input_name, 0, 0] for input_name in inputs], "output_layers": [end]}
    return {**model, "class_name": "Model", "config": {"name": name, "layers": layers, **ends}}


def _chained(model: Layer, layers: list[Layer], inputs: list[str]) -> list[Any] | None:
    """Add a branch's layers, and return where its output is; None if it has no input."""
    config = model.get("config")
    if isinstance(config, dict) and isinstance(config.get("output_layers"), list):  # a graph
        layers += config["layers"]
        inputs += [input_layer[0] for input_layer in config["input_layers"]]
        return list(config["output_layers"][0]) if len(config["output_layers"]) == 1 else None
    ends = [_chained(branch, layers, inputs) for branch in _branches(model)]
    chain = [model] if sublayers(config) is None else sublayers(config) or []
    shape = None if ends else _input(chain[:1])
    if shape is not None:
        entry = f"{layer_name(chain[0])}_input"
        settings = {"name": entry, "sparse": False, **shape}
        layers.append({"class_name": "InputLayer", "name": entry, "config": settings, "inbound_nodes": []})
        inputs.append(entry)
        ends = [[entry, 0, 0]]
    if not ends or None in ends:
        return None
    for layer in map(dict, chain):
        if layer.get("class_name") == MERGE:
            layer["config"] = {key: value for key, value in layer["config"].items() if key != "layers"}
        layers.append({**layer, "name": layer_name(layer), "inbound_nodes": [ends]})
        is_model = sublayers(layer.get("config")) is not None
        ends = [[layer_name(layer), int(is_model), 0]]  # the making of a model counts as its first call
    return ends[0]


def _input(first: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Shape and dtype of the input of the first layer, or of the first in it."""
    config = first[0].get("config") if first else None
    inner = sublayers(config) if config is not None else None
    if inner is not None:
        return _input(inner[:1])
    if not isinstance(config, Mapping) or config.get("batch_input_shape") is None:
        return None
    dtypes = {key: config[key] for key in ("input_dtype", "dtype") if key in config}
    return {"batch_input_shape": config["batch_input_shape"], **dtypes}
