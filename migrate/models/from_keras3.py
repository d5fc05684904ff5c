"""A model's config of Keras 3 in Keras 2's terms, for tf_keras. Source: `keras/src/layers` 3.0 to 3.15."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migrate.models.layers import KINDS, MODELS
from optim.errors import UnsupportedError

MASKED = "zero_output_for_mask"
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
"""Arguments that Keras 2 does not have -> the values with which they change nothing of what is computed."""
MASKING = ("SimpleRNN", "LSTM", "GRU", "RNN")
"""Layers of Keras 2 that take MASKED; of ConvLSTM it takes it, too, and does nothing."""
SEEDED = ("Dropout", "SpatialDropout1D", "GaussianNoise", "GaussianDropout", "AlphaDropout")
"""Layers of Keras 2 that take a seed."""
ATTENDED = ("value", "key")
"""Arguments of a MultiHeadAttention behind the first."""
ORTHOGONAL = "OrthogonalInitializer"
"""What Keras 3 called `Orthogonal` until 3.6."""
ONLY_3 = (
    "relu6",
    "silu",
    "log_softmax",
    "celu",
    "glu",
    "hard_swish",
    "hard_silu",
    "hard_tanh",
    "sparse_plus",
    "squareplus",
)


def older(model: Mapping[str, Any]) -> dict[str, Any]:
    """Raises UnsupportedError for what Keras 2 cannot say."""
    config = model.get("config")
    if model.get("class_name") not in MODELS or not isinstance(config, Mapping):
        return dict(model)
    layers = [_layer(layer) for layer in config.get("layers", [])]
    nested = {str(x["config"].get("name")) for x in layers if x.get("class_name") in MODELS}
    for layer in layers:
        if "inbound_nodes" in layer:
            layer["inbound_nodes"] = [_node(node, nested, layer) for node in layer["inbound_nodes"]]
    kept = {key: config[key] for key in ("name", "build_input_shape") if config.get(key) is not None}
    # Of models among the outputs, Keras 3 counts the making as Keras 2 does everywhere, but of Sequentials.
    uncounted = {str(x["config"].get("name")) for x in layers if x.get("class_name") == "Sequential"}
    for key in ("input_layers", "output_layers"):
        if key in config:
            kept[key] = _ends(config[key], uncounted)
    if config.get("trainable") is False:
        kept["trainable"] = False
    return {**model, "config": {**kept, "layers": layers}}


def _ends(ends: Any, uncounted: set[str]) -> Any:
    """Inputs or outputs: a list, or a mapping from names that the model's caller gives them."""
    if isinstance(ends, Mapping):
        return {name: _ends(end, uncounted)[0] for name, end in ends.items()}
    listed = [ends] if ends and isinstance(ends[0], str) else ends
    return [[end[0], end[1] + (end[0] in uncounted), end[2]] for end in _flat(listed)]


def _flat(ends: Any) -> list[Any]:
    if not isinstance(ends, list):
        raise UnsupportedError("the model has inputs or outputs in mappings within lists, which tf_keras cannot say")
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
        if key in ADDED and not known:
            _check(name, layer["config"].get("name"), key, value)
            continue
        config[back.get(key, key)] = _value(key, value, name)
    for key in kind.inner if kind is not None else ():
        if config.get(key):
            held = layer["config"][key]
            config[key] = [_layer(each) for each in held] if isinstance(held, list) else _layer(held)
    return {**layer, "config": config}


def _check(name: str, shown: Any, key: str, value: Any) -> None:
    if ... not in ADDED[key] and value not in ADDED[key]:
        raise UnsupportedError(f"the layer {shown!r} has {key}={value!r}, and tf_keras's {name} has no {key}")


def _value(key: str, value: Any, name: str) -> Any:
    if key.endswith("_initializer") and isinstance(value, Mapping):
        settings = {k: v for k, v in (value.get("config") or {}).items() if k not in ADDED or k == "seed"}
        initializer = value.get("class_name")
        return {"class_name": "Orthogonal" if initializer == ORTHOGONAL else initializer, "config": settings}
    if key.endswith("activation") and value in ONLY_3:
        raise UnsupportedError(f"a layer {name} has the activation {value!r}, which tf_keras does not know")
    return value


def _node(node: Any, nested: set[str], layer: Mapping[str, Any]) -> list[Any]:
    """`{"args", "kwargs"}` -> [[layer, node, tensor, keyword arguments], ...]."""
    if not isinstance(node, Mapping):
        return list(node)
    tensors = [x for arg in node.get("args", []) for x in (arg if isinstance(arg, list) else [arg])]
    kwargs = {k: _plain(v, nested) for k, v in (node.get("kwargs") or {}).items() if v not in (None, [None, None])}
    ends = [_history(x, nested) for x in tensors]
    if not ends or any(end is None for end in ends):
        raise UnsupportedError(f"the layer {layer.get('name')!r} is called in a way that tf_keras's config cannot say")
    if layer.get("class_name") == "MultiHeadAttention":  # Keras 2 has all but the first among the named arguments
        kwargs |= zip(ATTENDED, ends[1:], strict=False)
        ends = ends[:1]
    return [[*end, kwargs] for end in ends if end is not None]


def _history(tensor: Any, nested: set[str]) -> list[Any] | None:
    if not isinstance(tensor, Mapping) or tensor.get("class_name") != "__keras_tensor__":
        return None
    name, node, index = tensor["config"]["keras_history"]
    return [name, node + (name in nested), index]


def _plain(value: Any, nested: set[str]) -> Any:
    found = _history(value, nested)
    if found is None and not isinstance(value, (bool, int, float, str)):
        raise UnsupportedError(f"a layer is called with {value!r}, which tf_keras's config cannot say")
    return value if found is None else found
