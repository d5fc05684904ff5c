"""Translate a model's config into that of Keras 3's `.keras` files. Source: `keras/src/saving/serialization_lib.py`
and `keras/src/models/functional.py` 3.0 to 3.15."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from migrate.models import masks, operators
from migrate.models.layers import ADVICE, ATTENDED, INERT, KINDS, MODELS, OPERATORS, RANDOM
from migrate.models.normalized_config import Layer, layer_name, leaves, node_shifts
from optim.errors import UnsupportedError

INITIALIZERS = (
    *("Zeros", "Ones", "Constant", "RandomNormal", "RandomUniform", "TruncatedNormal", "VarianceScaling"),
    *("GlorotUniform", "GlorotNormal", "HeUniform", "HeNormal", "LecunUniform", "LecunNormal", "Orthogonal"),
)
REGULARIZERS = ("L1", "L2", "L1L2", "OrthogonalRegularizer")
CONSTRAINTS = ("MaxNorm", "MinMaxNorm", "NonNeg", "UnitNorm")
ACTIVATIONS = (
    *("linear", "relu", "relu6", "elu", "selu", "gelu", "leaky_relu", "sigmoid", "hard_sigmoid", "tanh", "softmax"),
    *("softplus", "softsign", "exponential", "swish", "silu", "mish", "log_softmax"),
)
ACTIVATED = ("activation", "recurrent_activation")
"""The keys of configs that name a layer."""
HARD_SIGMOID = "hard_sigmoid of Keras 2"
"""min(max(x/5 + 1/2, 0), 1), for which Keras 3 has no name."""
RENORM = ("renorm", "renorm_clipping", "renorm_momentum")
RENORM_SINCE = "3.14.0"
"""The first release of Keras 3 whose BatchNormalization has `renorm`."""
WITH_STATE = ("SimpleRNN", "LSTM", "GRU", "RNN", "Bidirectional", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D")
"""Layers whose calls may contain an initial state."""


@dataclass
class Translation:
    """Results of a translation in addition to the config."""

    notes: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """Layers that had to be renamed."""
    flattened: bool = False
    """Whether a layer joins axes, and so needs their sizes."""
    since: str = ""
    """The first release of Keras 3 that loads it, if it is not the earliest target."""


def to_keras3(document: Layer, translation: Translation) -> dict[str, Any]:
    """Return the config of a whole model, without `compile_config`.

    Args:
      document: as `normalized_config.canonical` returns it.

    Raises:
      UnsupportedError: it has something that Keras 3 does not have.
    """
    _rename(document, translation)
    translation.flattened = any(leaf.class_name in ("Flatten", "Reshape") for leaf in leaves(document))
    return _model(document, translation)


def _rename(document: Layer, translation: Translation) -> None:
    """Rename what Keras 3 refuses: names with a slash, and that of the operation that computes a layer's mask."""
    names = list(_names(document))
    operations = {name for kind, name in masks.meetings(document) if kind == masks.CONCATENATED}
    for name in names:
        is_mask_operation = name in operations and name.startswith("concatenate")
        if ("/" not in name and not is_mask_operation) or name in translation.names:
            continue
        plain = name.replace("/", "_")
        while plain in names or plain in translation.names.values():
            plain += "_"
        translation.names[name] = plain
        why = "has an operation of that name" if is_mask_operation else "allows no slash in names"
        translation.notes.append(f"the layer {name!r} is called {plain!r} in the target, because Keras 3 {why}")


def _names(document: Layer) -> list[str]:
    names = [str(document["config"].get("name") or "")]
    for layer in document["config"]["layers"]:
        names += _names(layer) if layer["class_name"] in MODELS else [layer_name(layer)]
    return names


def _object(module: str, class_name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {"module": module, "class_name": class_name, "config": dict(config), "registered_name": None}


def _model(model: Layer, translation: Translation) -> dict[str, Any]:
    config = model["config"]
    name = str(config.get("name") or model.get("name") or model["class_name"].lower())
    name = translation.names.get(name, name)
    if model["class_name"] == "Sequential":
        layers = [_layer(layer, translation) for layer in with_input(config)]
        return _object("keras", "Sequential", {"name": name, "trainable": True, "layers": layers})
    shifts = node_shifts(config)
    layers = []
    for layer in config["layers"]:
        config_ = (
            _tensorflow_function(layer, shifts, translation)
            if layer["class_name"] in OPERATORS
            else _layer(layer, translation)
        )
        config_["name"] = config_["config"]["name"] = translation.names.get(layer_name(layer), layer_name(layer))
        if layer["class_name"] not in OPERATORS:
            config_["inbound_nodes"] = [
                _node(node, shifts, translation, layer) for node in layer.get("inbound_nodes") or []
            ]
        layers.append(config_)
    ends = {
        "input_layers": _ends(config["input_layers"], shifts, translation),
        "output_layers": _ends(config["output_layers"], _output_shifts(config["layers"], shifts), translation),
    }
    return _object(
        "keras.src.models.functional", "Functional", {"name": name, "trainable": None, "layers": layers, **ends}
    )


def with_input(config: Mapping[str, Any]) -> list[Layer]:
    """A Sequential's layers, an InputLayer first."""
    layers = list(config["layers"])
    if not layers or layers[0]["class_name"] == "InputLayer":
        return layers
    first = layers[0]["config"]
    shape = first.get("batch_input_shape")
    if shape is None and layers[0]["class_name"] in MODELS:
        inner = with_input(first) if layers[0]["class_name"] == "Sequential" else first["layers"]
        shape = inner[0]["config"].get("batch_input_shape") if inner else None
    shape = shape or config.get("build_input_shape")
    if shape is None:
        raise UnsupportedError(f"the model {config.get('name')!r} does not contain the shape of its input; {ADVICE}")
    dtype = first.get("input_dtype") or "float32"
    entry = {"batch_input_shape": shape, "dtype": dtype, "name": f"{layer_name(layers[0])}_input"}
    return [{"class_name": "InputLayer", "config": entry}, *layers]


def _output_shifts(layers: Sequence[Layer], shifts: Mapping[str, int]) -> dict[str, int]:
    """Return `shifts` for the outputs of a model.

    For outputs, and not between layers, Keras 3 counts the making of a functional model as its first call, and uses the
    call before (`models/functional.py`, `node_index -= 1`, since 3.3). If a model is called once, -1 is the same as 0,
    and earlier releases use 0.
    """
    again = {layer_name(x) for x in layers if x["class_name"] in MODELS and len(x.get("inbound_nodes") or []) > 1}
    again -= {layer_name(x) for x in layers if x["class_name"] == "Sequential"}
    return {name: shift - (name in again) for name, shift in shifts.items()}


def _ends(ends: Any, shifts: Mapping[str, int], translation: Translation) -> Any:
    """Inputs or outputs in Keras 3's form. Keras 2 treated a list of one as its element; Keras 3 does not."""
    if isinstance(ends, Mapping):
        return {key: _ends(end, shifts, translation) for key, end in ends.items()}
    if ends and isinstance(ends[0], str):
        return _history(ends, shifts, translation)
    return _ends(ends[0], shifts, translation) if len(ends) == 1 else [_ends(end, shifts, translation) for end in ends]


def _history(end: Sequence[Any], shifts: Mapping[str, int], translation: Translation) -> list[Any]:
    name, node, tensor = end[:3]
    return [translation.names.get(name, name), node - shifts.get(name, 0), tensor]


def _tensor(end: Sequence[Any], shifts: Mapping[str, int], translation: Translation) -> dict[str, Any]:
    """Return a tensor. Keras 3 reads shape and dtype, but uses those of the layer itself."""
    history = _history(end, shifts, translation)
    return {"class_name": "__keras_tensor__", "config": {"shape": [], "dtype": "float32", "keras_history": history}}


def _node(node: Any, shifts: Mapping[str, int], translation: Translation, layer: Layer) -> dict[str, Any]:
    """Convert one call, a list of [layer, node, tensor, keyword arguments], by name if the model names its inputs."""
    arguments: dict[str, Any] = {}
    named = node if isinstance(node, Mapping) else None
    node = list(node if named is None else named.values())
    for end in node:
        arguments |= {k: v for k, v in (end[3] if len(end) > 3 else {}).items() if v is not None}

    def argument(value: Any) -> Any:
        if operators.is_end(value):
            return _tensor(value, shifts, translation)
        if isinstance(value, list):
            return [None if member is None else argument(member) for member in value]
        if not isinstance(value, (bool, int, float, str)):
            raise UnsupportedError(f"the layer {layer_name(layer)!r} is called with {value!r}; {ADVICE}")
        return value

    kwargs = {key: argument(value) for key, value in arguments.items()}
    if named is not None:
        return {"args": [{key: _tensor(end, shifts, translation) for key, end in named.items()}], "kwargs": kwargs}
    tensors = [_tensor(end, shifts, translation) for end in node]
    if layer["class_name"] == "MultiHeadAttention":  # Keras 3 numbers layers in this order
        tensors += [kwargs.pop(key) for key in ATTENDED if key in kwargs]
        return {"args": tensors, "kwargs": kwargs}
    several = len(tensors) > 1
    if several and layer["class_name"] in WITH_STATE:  # Keras 2 lists it after the sequence
        return {"args": tensors[:1], "kwargs": {**kwargs, "initial_state": tensors[1:]}}
    return {"args": [tensors] if several else tensors, "kwargs": kwargs}


def _tensorflow_function(layer: Layer, shifts: Mapping[str, int], translation: Translation) -> dict[str, Any]:
    config, nodes = operators.converted(layer, lambda end: _tensor(end, shifts, translation))
    operation = operators.operator(layer)
    return {**_object(f"keras.src.ops.{operation.module}", operation.class_name, config), "inbound_nodes": nodes}


def _layer(layer: Layer, translation: Translation) -> dict[str, Any]:
    if layer["class_name"] in MODELS:
        config_ = _model(layer, translation)
        if layer["config"].get("trainable") is False:
            config_["config"]["trainable"] = False
        return config_
    name, kind = layer["class_name"], KINDS[layer["class_name"]]
    shown = layer_name(layer)
    config: dict[str, Any] = {}
    renorm = bool(layer["config"].get("renorm"))
    for key, value in layer["config"].items():
        if key in INERT and key not in kind.renamed:
            continue
        if key in kind.dropped and not (renorm and key in RENORM):
            _check_dropped(shown, name, key, value, kind.dropped[key])
            continue
        config[kind.renamed.get(key, key)] = _value(key, value, shown)
    if renorm:
        translation.since = RENORM_SINCE
        translation.notes.append(f"the layer {shown!r} has renorm, so it needs Keras {RENORM_SINCE} or later")
    for key in ACTIVATED:
        if config.get(key) == HARD_SIGMOID:
            config[key] = _hard_sigmoid({"dtype": config["dtype"]} if config.get("dtype") else {})
    config["name"] = translation.names.get(shown, shown)
    if name == "BatchNormalization" and isinstance(config.get("axis"), list):
        config["axis"] = _only(config["axis"], shown)
    if config.get("padding") == "causal" and name != "Conv1D":
        raise UnsupportedError(f"the layer {shown!r} has the padding 'causal', which Keras 3's {name} does not have")
    if name == "EinsumDense" and None in _listed(config.get("output_shape")) and translation.flattened:
        raise UnsupportedError(
            f"the layer {shown} has a size of None in output_shape. Keras 3 does not derive it from the input,"
            f" and a layer of the model needs it; {ADVICE}"
        )
    if name == "RandomContrast":
        config["factor"] = _contrast(config["factor"], shown)
    if name in RANDOM:
        translation.notes.append(f"the layer {shown!r} draws other random numbers in Keras 3, of the same distribution")
    for key in kind.inner:
        inner = layer["config"].get(key)
        if inner:
            config[key] = (
                [_layer(cell, translation) for cell in inner] if isinstance(inner, list) else _layer(inner, translation)
            )
    return _object("keras.layers", name, config)


def _hard_sigmoid(dtype: Mapping[str, Any]) -> dict[str, Any]:
    """Keras 1's and 2's hard sigmoid as layers of Keras 3, which accepts any layer as an activation."""
    steps = {"Rescaling": {"scale": 0.2, "offset": 0.5}, "ReLU": {"max_value": 1.0}}
    layers = [
        _object("keras.layers", kind, {"name": kind.lower(), **config, **dtype}) for kind, config in steps.items()
    ]
    return _object("keras", "Sequential", {"name": "hard_sigmoid", **dtype, "layers": layers})


def _listed(shape: Any) -> list[Any]:
    return shape if isinstance(shape, list) else [shape]


def _contrast(factor: Any, shown: str) -> list[float]:
    """Convert a contrast factor: Keras 3 reads one number as 0 to that much more, and sorts a pair; Keras 2 has (less,
    more)."""
    less, more = factor if isinstance(factor, Sequence) else (factor, factor)
    if less > more:
        raise UnsupportedError(f"the layer {shown} has the factor {factor}, which Keras 3 would reorder; {ADVICE}")
    return [less, more]


def _only(axes: Sequence[int], shown: str) -> int:
    if len(axes) != 1:
        raise UnsupportedError(f"the layer {shown!r} normalizes several axes, {list(axes)}, which Keras 3 does not")
    return int(axes[0])


def _check_dropped(shown: str, name: str, key: str, value: Any, neutral: tuple[Any, ...]) -> None:
    if ... not in neutral and value is not None and value not in neutral:
        raise UnsupportedError(f"the layer {shown!r} has {key}={value!r}, and Keras 3's {name} has no {key}; {ADVICE}")


def _value(key: str, value: Any, shown: str) -> Any:
    if key.endswith("_initializer"):
        return _known_initializer(value)
    if key.endswith("_regularizer") and value is not None:
        return _known(value, "regularizers", REGULARIZERS, shown)
    if key.endswith("_constraint") and value is not None:
        return _known(value, "constraints", CONSTRAINTS, shown)
    if key in ACTIVATED and value is not None and value not in (*ACTIVATIONS, HARD_SIGMOID):
        raise UnsupportedError(
            f"the layer {shown!r} has the activation {value!r}, which is not one of Keras's; {ADVICE}"
        )
    if key == "dtype" and isinstance(value, str) and value.endswith("_float16") and value != "mixed_float16":
        raise UnsupportedError(f"the layer {shown!r} has the dtype policy {value!r}, which Keras 3 does not have")
    return value


def _known_initializer(value: Any) -> Any:
    if not isinstance(value, Mapping) or value.get("class_name") not in INITIALIZERS:
        return None if value is None else _object("keras.initializers", "GlorotUniform", {"seed": None})
    config = {k: v for k, v in (value.get("config") or {}).items() if k not in ("dtype", "partition_info")}
    if config.get("distribution") == "normal":
        config["distribution"] = "truncated_normal"
    return _object("keras.initializers", value["class_name"], config)


def _known(value: Any, module: str, known: Sequence[str], shown: str) -> dict[str, Any]:
    name = value.get("class_name") if isinstance(value, Mapping) else value
    if not isinstance(value, Mapping) or name not in known:
        raise UnsupportedError(f"the layer {shown!r} has {name!r}, which is not in Keras's {module}; {ADVICE}")
    return _object(f"keras.{module}", str(name), value.get("config") or {})
