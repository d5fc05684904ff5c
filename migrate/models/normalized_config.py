"""Normalize a model's config of any Keras to that of Keras 2's `model_config`, without serialization details."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from migrate.generations import traits
from migrate.models import operators
from migrate.models.layers import ADVICE, ALWAYS_SAVED, KINDS, MODELS, OPERATORS, is_stock, of_another_module
from optim.errors import UnsupportedError

SERIALIZED = {"module", "registered_name", "build_config", "shared_object_id", "compile_config"}
RENAMED_CLASSES = {
    "Model": "Functional",
    "Convolution1D": "Conv1D",
    "Convolution2D": "Conv2D",
    "Convolution3D": "Conv3D",
}
Layer = Mapping[str, Any]


@dataclass(frozen=True)
class Leaf:
    """A layer that is not a model. `path`: names of the models it is in, without the outermost, then its own.

    `frozen`: whether it, or an outer model, has `trainable` off.
    """

    path: tuple[str, ...]
    class_name: str
    config: dict[str, Any]
    frozen: bool


def canonical(config: Mapping[str, Any], generation: str | None) -> dict[str, Any]:
    """Return a model's config in Keras 2's terms.

    Args:
      config: `{"class_name", "config"}` from the source.
      generation: of the source.

    Raises:
      UnsupportedError: it has layers that are not Keras's own, or is neither a Sequential nor a graph of layers.
    """
    plain = _without_marks(config)
    if not isinstance(plain, Mapping) or not isinstance(plain.get("class_name"), str):
        raise UnsupportedError(f"the source's description of its model is not readable; {ADVICE}")
    if traits(generation).has_keras1_layers:
        from migrate.models import keras1

        plain = keras1.modern(plain)
    elif traits(generation).has_keras3_layers:
        from migrate.models import from_keras3

        plain = from_keras3.older(plain)
    document = _model(plain, "")
    _freeze(document, False)
    return document


def _freeze(model: Layer, frozen: bool) -> None:
    """Freeze each layer of a frozen model, because today's Keras and tf_keras use only the layers' flags."""
    for layer in model["config"]["layers"]:
        if layer["class_name"] in MODELS:
            _freeze(layer, frozen or layer["config"].get("trainable") is False)
        else:
            freeze_layer(layer, frozen)


def freeze_layer(layer: Layer, frozen: bool, within: bool = False) -> None:
    """Freeze a layer, and the layers `within` it, which Keras 3 trains differently."""
    config = layer["config"]
    if frozen and config.get("trainable", within) is True:
        if layer["class_name"] == "BatchNormalization":
            raise UnsupportedError(
                f"the layer {layer_name(layer)!r} is not frozen, in a model or layer that is: it normalizes by the"
                f" batch and is not trained, which no target can express; {ADVICE}"
            )
        config["trainable"] = False
    for inner in inner_layers(layer):
        freeze_layer(inner, frozen or config.get("trainable") is False, within=True)


def inner_layers(layer: Layer) -> list[Layer]:
    """The layers in a layer that is not a model."""
    members = [layer["config"].get(key) for key in KINDS[layer["class_name"]].inner]
    return [inner for item in members if item for inner in (item if isinstance(item, list) else [item])]


def _without_marks(item: Any) -> Any:
    if isinstance(item, list):
        return [_without_marks(x) for x in item]
    if not isinstance(item, Mapping):
        return item
    name, config = item.get("class_name"), item.get("config")
    if name == "__tuple__":
        return [_without_marks(x) for x in item.get("items", [])]
    if isinstance(config, Mapping) and name in ("Policy", "PolicyV1", "DTypePolicy", "FloatDTypePolicy"):
        return config.get("name")
    registered = item.get("registered_name")
    if isinstance(registered, str) and ">" in registered and not registered.startswith("Custom>"):
        return {"class_name": registered, "config": _without_marks(config)}
    if "module" in item and isinstance(name, str) and name != "function" and of_another_module(item):
        return {"class_name": f"{item['module'] or 'Custom'}>{name}", "config": _without_marks(config)}
    return {key: _without_marks(value) for key, value in item.items() if key not in SERIALIZED}


def own_class(model: Mapping[str, Any]) -> str | None:
    """The class of a custom Sequential or graph of layers; None if it is Keras's."""
    config, name = model.get("config"), str(model.get("class_name"))
    if not isinstance(config, Mapping) or not isinstance(config.get("layers"), list):
        return None
    foreign = "module" in model and of_another_module(model)
    return name if foreign or RENAMED_CLASSES.get(name, name) not in MODELS else None


def _model(model: Mapping[str, Any], where: str) -> dict[str, Any]:
    name = RENAMED_CLASSES.get(str(model.get("class_name")), str(model.get("class_name")))
    config = model.get("config")
    if isinstance(config, Sequence) and not isinstance(config, str):
        config = {"name": str(model.get("name") or "sequential"), "layers": config}  # Keras up to 2.2.2
    if name not in MODELS or not isinstance(config, Mapping) or not isinstance(config.get("layers"), list):
        raise UnsupportedError(
            f"the model{where} is a {name}, and neither a Sequential nor a graph of layers; {ADVICE}"
        )
    layers = [_layer(layer) for layer in config["layers"]]
    return {**model, "class_name": name, "config": {**config, "layers": layers}}


def _layer(layer: Any) -> dict[str, Any]:
    if not isinstance(layer, Mapping) or not isinstance(layer.get("class_name"), str):
        raise UnsupportedError(f"the source's description of its model is not readable; {ADVICE}")
    name = RENAMED_CLASSES.get(layer["class_name"], layer["class_name"])
    config = layer.get("config")
    if name in MODELS:
        return _model(layer, f" {layer.get('name', '')!r} in it")
    shown = layer.get("name") or (config or {}).get("name")
    if isinstance(config, Mapping) and name in KINDS and not is_stock(name, config):
        raise UnsupportedError(
            f"the layer {shown!r} is a {name} without {ALWAYS_SAVED[name]}, which Keras's own has, so it is another"
            f" class of that name; {ADVICE}"
        )
    if name not in KINDS or not isinstance(config, Mapping):
        raise UnsupportedError(
            f"the layer {shown!r} is a {name}, which is not a Keras layer that this dtopt translates; {ADVICE}"
        )
    if name == "GRU":  # Keras before 2.1.4 did not have the argument, later ones require it
        config = {"reset_after": False, **config}
    if name == "Embedding":
        config = _embedding(config)
    if name == "MultiHeadAttention":  # TF 2.4 does not save it, and tf_keras requires it
        config = {**dict.fromkeys(("query_shape", "key_shape", "value_shape")), **config}
    if name in OPERATORS:
        operators.operator(layer)
    inner = {key: _inner_or_several(config[key], str(shown)) for key in KINDS[name].inner if config.get(key)}
    return {**layer, "class_name": name, "config": {**config, **inner}}


def _embedding(config: Mapping[str, Any]) -> dict[str, Any]:
    """Adapt to later Keras: Keras 2.0.0 and TF 1.2 save the dtype of the input, and TF 1 draws floats below 1 if no
    maximum is set."""
    initializer = config.get("embeddings_initializer")
    if isinstance(initializer, Mapping) and "maxval" in (settings := initializer.get("config") or {}):
        maximum = 1.0 if settings["maxval"] is None else settings["maxval"]
        config = {**config, "embeddings_initializer": {**initializer, "config": {**settings, "maxval": maximum}}}
    is_of_rows = str(config.get("dtype")).startswith(("int", "uint"))
    return {**config, "dtype": "float32"} if is_of_rows else {**config}


def _inner_or_several(layer: Any, name: str) -> Any:
    if isinstance(layer, list):
        return [_inner_or_several(member, name) for member in layer]
    inner = _layer(layer)
    if inner["class_name"] in MODELS:
        raise UnsupportedError(f"the layer {name!r} wraps a model, which this dtopt does not translate; {ADVICE}")
    return inner


def layer_name(layer: Layer) -> str:
    return str(layer.get("name") or layer["config"].get("name"))


def output_names(model: Layer) -> list[str]:
    """The layers that produce the outputs of a graph of layers; empty for a Sequential."""
    return [str(end[0]) for end in operators.ends(model["config"].get("output_layers") or [])]


def node_shifts(config: Mapping[str, Any]) -> dict[str, int]:
    """The offset of Keras 2's numbers for the calls of a nested model: it counts the making of the model as one."""
    layers = config["layers"]
    counts = {layer_name(layer): len(layer.get("inbound_nodes") or []) for layer in layers}
    models = [layer_name(layer) for layer in layers if layer["class_name"] in MODELS]
    used = [end for layer in layers for end in operators.ends(layer.get("inbound_nodes") or [])]
    used += operators.ends(config["output_layers"])
    shifts = {}
    for name in models:
        indices = [end[1] for end in used if end[0] == name]
        shifts[name] = 1 if not indices or min(indices) >= 1 or max(indices) >= counts[name] else 0
    return shifts


def leaves(model: Layer, path: tuple[str, ...] = (), frozen: bool = False) -> Iterator[Leaf]:
    """Yield every layer in the order of `model.layers`, including those of nested models."""
    for layer in model["config"]["layers"]:
        config = layer["config"]
        below = frozen or config.get("trainable") is False
        here = (*path, layer_name(layer))
        if layer["class_name"] in MODELS:
            yield from leaves(layer, here, below)
        else:
            yield Leaf(here, layer["class_name"], config, below)
