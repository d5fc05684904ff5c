"""Translate a model's config of Keras 3 into today's terms, and into Keras 2's. Source: `keras/src/layers` 3.0 to
3.15."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from migrate.models import from_operations
from migrate.models.layers import ATTENDED, KINDS, MODELS, RANDOM, of_another_module
from optim.errors import UnsupportedError

MASKED = "zero_output_for_mask"
UNUSED_RANGE = "value_range"
"""Arguments that RandomRotation of Keras 3.0 to 3.5 saves without using them, and that no other Keras accepts."""
ADDED = {
    "quantization_config": (None,),
    "rms_scaling": (False,),
    MASKED: (False,),
    "use_cudnn": (...,),
    "flash_attention": (None, False),
    "optional": (False,),
    "seed": (...,),
    "lora_rank": (None,),
    "lora_alpha": (None,),
    "autocast": (True,),
    "input_axes": (None,),
    "output_axes": (None,),
}
"""Arguments that Keras 2 does not have -> the values with which they do not change the result."""
CHANNELS = {"data_format": ("channels_last", None)}
ADDED_TO: dict[str, Mapping[str, tuple[Any, ...]]] = {
    **dict.fromkeys(("ZeroPadding1D", "CenterCrop", *RANDOM), CHANNELS),
    "Resizing": {
        **CHANNELS,
        "pad_to_aspect_ratio": (False,),
        "antialias": (False,),
        "fill_mode": (...,),
        "fill_value": (...,),
    },
    "RandomContrast": {**CHANNELS, "value_range": ([0, 255],)},
    "RandomRotation": {**CHANNELS, UNUSED_RANGE: (...,)},
    "AlphaDropout": {"noise_shape": (None,)},
    "MultiHeadAttention": {"use_gate": (False,), "sliding_window": (None,)},
}
"""Like ADDED, for layers that exist in Keras 2 without these; without `pad_to_aspect_ratio` nothing is filled."""
MASKING = ("SimpleRNN", "LSTM", "GRU", "RNN")
"""Layers of Keras 2 that accept MASKED; ConvLSTM accepts and ignores it."""
SEEDED = ("Dropout", "SpatialDropout1D", "GaussianNoise", "GaussianDropout", "AlphaDropout")
"""Layers of Keras 2 that accept a seed."""
OWN_MASKS = ("query_mask", "value_mask", "key_mask")
"""Arguments in which Keras 3.0 to 3.9 writes masks that a MultiHeadAttention's inputs have anyway."""
PASSED_OVER = ("training",)
"""Arguments that a model of Keras 3 passes again whenever it is called, see `training_flag`."""
ORTHOGONAL = "OrthogonalInitializer"
"""Keras 3's name of `Orthogonal` until 3.6."""
ONLY_3 = (
    "relu6",
    *("tanh_shrink", "soft_shrink", "hard_shrink", "threshold", "log_sigmoid", "sparsemax", "sparse_sigmoid"),
    "log_softmax",
    "celu",
    "glu",
    "hard_swish",
    "hard_silu",
    "hard_tanh",
    "sparse_plus",
    "squareplus",
)


def newer(item: Any) -> Any:
    """Return a model's config of any Keras 3, or a part of it, as today's Keras loads it."""
    if isinstance(item, list):
        return [newer(member) for member in item]
    if not isinstance(item, Mapping):
        return item
    document = {key: newer(value) for key, value in item.items()}
    is_of_keras = item.get("class_name") == "RandomRotation" and not of_another_module({"module": "keras", **item})
    if is_of_keras and isinstance(document.get("config"), dict):
        document["config"].pop(UNUSED_RANGE, None)
    return document


def older(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model in Keras 2's terms. Raises UnsupportedError for what Keras 2 cannot express."""
    config = model.get("config")
    if model.get("class_name") not in MODELS or not isinstance(config, Mapping):
        return dict(model)
    all_layers = [_layer(layer) for layer in config.get("layers", [])]
    layers = [layer for layer in all_layers if not from_operations.returns_its_input(layer)]
    nested = {str(x["config"].get("name")) for x in layers if x.get("class_name") in MODELS}
    end = _Ends(nested, {from_operations.name_of(x): x for x in all_layers if from_operations.returns_its_input(x)})
    for i, layer in enumerate(layers):
        if from_operations.is_operation(layer):
            layers[i] = from_operations.function(layer, end)
        elif "inbound_nodes" in layer:
            layer["inbound_nodes"] = [_node(node, end, layer) for node in layer["inbound_nodes"]]
    # `trainable` is left out: freezing a model freezes its layers, and these can be made trainable one by one.
    kept = {key: config[key] for key in ("name", "build_input_shape") if config.get(key) is not None}
    # For models among the outputs, Keras 3 counts the making as Keras 2 does everywhere, except for Sequentials.
    uncounted = {str(x["config"].get("name")) for x in layers if x.get("class_name") == "Sequential"}
    for key in ("input_layers", "output_layers"):
        if key in config:
            kept[key] = _ends(config[key], uncounted)
    return {**model, "config": {**kept, "layers": layers}}


def _ends(ends: Any, uncounted: set[str]) -> Any:
    """Inputs or outputs: a list, or a mapping by the names that the model's caller uses."""
    if isinstance(ends, Mapping):
        return {name: _ends(end, uncounted)[0] for name, end in ends.items()}
    listed = [ends] if ends and isinstance(ends[0], str) else ends
    return [[end[0], end[1] + (end[0] in uncounted), end[2]] for end in _flat(listed)]


def _flat(ends: Any) -> list[Any]:
    if not isinstance(ends, list):
        raise UnsupportedError(
            "the model has inputs or outputs in mappings within lists, which a tf_keras config cannot express"
        )
    return [x for end in ends for x in ([end] if isinstance(end[0], str) else _flat(end))]


def _layer(layer: Any) -> dict[str, Any]:
    if not isinstance(layer, Mapping) or not isinstance(layer.get("config"), Mapping):
        return {"class_name": "", "config": {}}
    if layer.get("class_name") in MODELS:
        return older(layer)
    name = str(layer["class_name"])
    kind = KINDS.get(name)
    back = {new: old for old, new in kind.renamed.items()} if kind is not None else {}
    config = {}
    for key, value in layer["config"].items():
        known = (key == "seed" and name in SEEDED) or (key == MASKED and name in MASKING and value is True)
        neutral = ADDED_TO.get(name, {}).get(key, ADDED.get(key))
        if neutral is not None and not known:
            _check(name, layer["config"].get("name"), key, value, neutral)
            continue
        config[back.get(key, key)] = _value(key, value, name)
    for key in kind.inner if kind is not None else ():
        if config.get(key):
            inner = layer["config"][key]
            config[key] = [_layer(cell) for cell in inner] if isinstance(inner, list) else _layer(inner)
    if config.get("trainable") is False and any(map(_is_trained, _inner(config, kind.inner if kind else ()))):
        config["trainable"] = (
            True  # Keras 3 uses the flags of its layers, which were frozen with it or made trainable again
        )
    return {**layer, "config": config}


def _inner(config: Mapping[str, Any], keys: Sequence[str]) -> list[Mapping[str, Any]]:
    members = [config[key] for key in keys if config.get(key)]
    return [layer for item in members for layer in (item if isinstance(item, list) else [item])]


def _is_trained(layer: Mapping[str, Any]) -> bool:
    return layer["config"].get("trainable") is not False


def _check(name: str, shown: Any, key: str, value: Any, neutral: tuple[Any, ...]) -> None:
    if ... not in neutral and value not in neutral:
        raise UnsupportedError(f"the layer {shown!r} has {key}={value!r}, and tf_keras's {name} has no {key}")


def _value(key: str, value: Any, name: str) -> Any:
    if isinstance(value, Mapping) and value.get("class_name") == "function":
        value = value.get("config")  # tf_keras identifies a function, such as a custom one, by its name
    if key.endswith("_initializer") and isinstance(value, Mapping):
        settings = {k: v for k, v in (value.get("config") or {}).items() if k not in ADDED or k == "seed"}
        initializer = value.get("class_name")
        return {"class_name": "Orthogonal" if initializer == ORTHOGONAL else initializer, "config": settings}
    if key.endswith("activation") and value == "silu":
        return "swish"
    if key.endswith("activation") and isinstance(value, Mapping):
        return _layer(value)
    if key == "dtype" and isinstance(value, Mapping):
        raise UnsupportedError(
            f"a layer {name} has the dtype policy {value.get('class_name')}, which tf_keras does not have"
        )
    if key.endswith("activation") and value in ONLY_3:
        raise UnsupportedError(f"a layer {name} has the activation {value!r}, which tf_keras does not know")
    return value


def _node(node: Any, end: _Ends, layer: Mapping[str, Any]) -> Any:
    """`{"args", "kwargs"}` -> [[layer, node, tensor, keyword arguments], ...], by name if the model names its
    inputs."""
    if not isinstance(node, Mapping):
        return list(node)
    arguments = {k: v for k, v in (node.get("kwargs") or {}).items() if k not in PASSED_OVER and not _is_empty_mask(v)}
    kwargs = {k: _plain(v, end) for k, v in arguments.items()}
    named = _arguments_by_input(node.get("args", []), end)
    if named is not None:
        return {key: [*reference, kwargs] for key, reference in named.items()}
    tensors = [x for arg in node.get("args", []) for x in (arg if isinstance(arg, list) else [arg])]
    ends = [end(x) for x in tensors]
    if not ends or any(reference is None for reference in ends):
        raise UnsupportedError(
            f"the layer {layer.get('name')!r} is called in a way that a tf_keras config cannot express"
        )
    if layer.get("class_name") == "MultiHeadAttention":  # Keras 2 has all but the first among the named arguments
        kwargs = {k: v for k, v in kwargs.items() if k not in OWN_MASKS}
        kwargs |= zip(ATTENDED, ends[1:], strict=False)
        ends = ends[:1]
    return [[*reference, kwargs] for reference in ends if reference is not None]


def _is_empty_mask(value: Any) -> bool:
    several = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
    return all(mask is None for mask in several)


def _arguments_by_input(args: list[Any], end: _Ends) -> dict[str, list[Any]] | None:
    if len(args) != 1 or not isinstance(args[0], Mapping):
        return None
    references = {str(key): reference for key, value in args[0].items() if (reference := end(value)) is not None}
    return references if len(references) == len(args[0]) else None


@dataclass(frozen=True)
class _Ends:
    """Convert a tensor in a call to [layer, node, tensor]; None for other values.

    Attributes:
      nested: names of models; Keras 2 counts their making as a call.
      left_out: operations that return their input, which replaces them.
    """

    nested: set[str]
    left_out: Mapping[str, Mapping[str, Any]]

    def __call__(self, tensor: Any) -> list[Any] | None:
        if not isinstance(tensor, Mapping) or tensor.get("class_name") != "__keras_tensor__":
            return None
        name, node, index = tensor["config"]["keras_history"]
        if name in self.left_out:
            return self(self.left_out[name]["inbound_nodes"][node]["args"][0])
        return [name, node + (name in self.nested), index]


def _plain(value: Any, end: _Ends) -> Any:
    reference = end(value)
    if reference is None and isinstance(value, list):
        return [None if member is None else _plain(member, end) for member in value]
    if reference is None and not isinstance(value, (bool, int, float, str)):
        raise UnsupportedError(f"a layer is called with {value!r}, which a tf_keras config cannot express")
    return value if reference is None else reference
