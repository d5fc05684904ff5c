"""Translate Keras 1's layers into Keras 2's. Source: `keras/layers` 1.2.2, `keras/legacy/interfaces.py` 2.2.4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from migrate.models.layers import ADVICE
from migrate.readers.keras.early import MODES
from optim.errors import UnsupportedError

RENAMED = {
    "W_regularizer": "kernel_regularizer",
    "b_regularizer": "bias_regularizer",
    "W_constraint": "kernel_constraint",
    "b_constraint": "bias_constraint",
    "bias": "use_bias",
    "init": "kernel_initializer",
    "subsample": "strides",
    "subsample_length": "strides",
    "border_mode": "padding",
    "dim_ordering": "data_format",
    "nb_filter": "filters",
    "filter_length": "kernel_size",
    "atrous_rate": "dilation_rate",
    "p": "rate",
    "pool_length": "pool_size",
    "stride": "strides",
    "U_regularizer": "recurrent_regularizer",
    "inner_init": "recurrent_initializer",
    "inner_activation": "recurrent_activation",
    "dropout_W": "dropout",
    "dropout_U": "recurrent_dropout",
}
UNITS = {"output_dim": "units"}
ROLES = {
    "W": "kernel",
    "U": "recurrent_kernel",
    "b": "bias",
    "gamma": "gamma",
    "beta": "beta",
    "running_mean": "moving_mean",
    "running_std": "moving_variance",
}
"""Suffixes of Keras 1's weight names. `running_std` is the variance, despite its name."""
INITIALIZERS = {
    "glorot_uniform": "GlorotUniform",
    "glorot_normal": "GlorotNormal",
    "he_uniform": "HeUniform",
    "he_normal": "HeNormal",
    "lecun_uniform": "LecunUniform",
    "uniform": "RandomUniform",
    "normal": "RandomNormal",
    "orthogonal": "Orthogonal",
    "zero": "Zeros",
    "one": "Ones",
    "identity": "Identity",
}
GATED = ("LSTM", "GRU")
RECURRENT = ("SimpleRNN", *GATED)
WITHIN_TIME = (
    *("Dense", "Activation", "Dropout", "Flatten", "Reshape", "Convolution1D", "Convolution2D", "LeakyReLU", "ELU"),
    *("MaxPooling1D", "MaxPooling2D", "AveragePooling1D", "AveragePooling2D"),
    *("GlobalAveragePooling1D", "GlobalAveragePooling2D", "GlobalMaxPooling1D", "GlobalMaxPooling2D"),
)
"""Layers allowed in a TimeDistributed. With a fixed batch size Keras 1 normalizes each step alone, else all."""
WITHIN = {"TimeDistributed": WITHIN_TIME, "Bidirectional": RECURRENT}
KNOWN = (
    *("Permute", "RepeatVector", "InputLayer", "Embedding", "BatchNormalization", "Masking", *MODES.values()),
    *(*WITHIN_TIME, *RECURRENT, *WITHIN),
)
IMPLEMENTATIONS = {"cpu": 1, "mem": 1, "gpu": 2}
"""Keras 2's `implementation` by `consume_less`: 2 has one dropout mask for all gates."""
GONE = ("input_dim", "input_length", "create_input_layer", "weights", "activity_regularizer", "dropout")
REGULARIZERS = ("L1L2Regularizer", "WeightRegularizer", "ActivityRegularizer")


def role(tail: str, class_name: str) -> str:
    """Keras 2's name of a weight, by the suffix of its name in Keras 1 and its layer's class."""
    return "embeddings" if (class_name, tail) == ("Embedding", "W") else ROLES.get(tail, tail)


def modern(model: Mapping[str, Any]) -> dict[str, Any]:
    """Rename a model's arguments to Keras 2's. Raises UnsupportedError for layers that are not in KNOWN."""
    config = model.get("config")
    layers = config if isinstance(config, list) else config.get("layers", []) if isinstance(config, Mapping) else []
    new_layers = [_layer(layer) for layer in layers]
    if isinstance(config, Mapping):
        return {**model, "config": {**config, "layers": new_layers}}
    return {**model, "config": {"name": str(model.get("name") or "sequential_1"), "layers": new_layers}}


def _layer(layer: Mapping[str, Any]) -> dict[str, Any]:
    name, config = str(layer.get("class_name")), layer.get("config")
    if name in ("Sequential", "Model"):
        return modern(layer)
    if name not in KNOWN or not isinstance(config, Mapping):
        shown = config.get("name") if isinstance(config, Mapping) else name
        raise UnsupportedError(
            f"the layer {shown!r} is a {name} of Keras 1, which this dtopt does not translate; {ADVICE}"
        )
    changed: dict[str, Any] = {RENAMED.get(str(key), str(key)): value for key, value in config.items()}
    changed = {key: value for key, value in changed.items() if key not in GONE or value}
    special = {"Dense": _dense, "Embedding": _embedding, "BatchNormalization": _normalization}.get(name, _other)
    if name in RECURRENT:
        special = _gated if name in GATED else _simple
    if name in WITHIN:
        changed["layer"] = _inner(changed, WITHIN[name], name)
    return {**layer, "config": _objects(special(changed))}


def _inner(config: Mapping[str, Any], known: Sequence[str], kind: str) -> dict[str, Any]:
    """The layer in a wrapper. Bidirectional ignores its own `trainable`; its slots show it."""
    inner = config.get("layer")
    if not isinstance(inner, Mapping) or inner.get("class_name") not in known:
        kind_inside = inner.get("class_name") if isinstance(inner, Mapping) else inner
        raise UnsupportedError(
            f"the layer {config.get('name')!r} is a {kind} of Keras 1 around {kind_inside!r}, which this dtopt does not"
            f" translate; {ADVICE}"
        )
    return _layer(inner)


def _gated(config: dict[str, Any]) -> dict[str, Any]:
    """Translate LSTM and GRU. With separate gates Keras 1.2 regularizes U like W, but 1.0 and 1.1 use U's setting."""
    one, other = config.get("kernel_regularizer"), config.get("recurrent_regularizer")
    if one != other and config.get("consume_less", "cpu") != "gpu":
        raise UnsupportedError(
            f"the layer {config.get('name')!r} has W_regularizer={one!r} and U_regularizer={other!r}, and releases of"
            f" Keras 1 differ in which of them they use for U; {ADVICE}"
        )
    forgets = config.pop("forget_bias_init", None)
    unit = {} if forgets is None else {"unit_forget_bias": forgets == "one"}
    return {**_recurrent(config), **unit}


def _simple(config: dict[str, Any]) -> dict[str, Any]:
    if config.get("dropout") and config.get("consume_less", "cpu") != "cpu":
        raise UnsupportedError(
            f"the layer {config.get('name')!r} has dropout_W={config['dropout']}, which a SimpleRNN of Keras 1 uses"
            f" with consume_less='cpu' only; {ADVICE}"
        )
    return _recurrent(config)


def _recurrent(config: dict[str, Any]) -> dict[str, Any]:
    means = IMPLEMENTATIONS[config.pop("consume_less", "cpu")]
    return {**{k: v for k, v in _dense(config).items() if k != "input_length"}, "implementation": means}


def _dense(config: dict[str, Any]) -> dict[str, Any]:
    return {UNITS.get(key, key): value for key, value in config.items() if key != "input_dim"}


def _embedding(config: dict[str, Any]) -> dict[str, Any]:
    if config.get("dropout"):
        raise UnsupportedError(f"the layer {config.get('name')!r} drops out whole words, as only Keras 1 does")
    names = {"kernel_initializer": "embeddings_initializer", "kernel_regularizer": "embeddings_regularizer"}
    names["kernel_constraint"] = "embeddings_constraint"
    return {names.get(key, key): value for key, value in config.items() if key != "dropout"}


def _normalization(config: dict[str, Any]) -> dict[str, Any]:
    if config.get("mode", 0) != 0:
        raise UnsupportedError(
            f"the layer {config.get('name')!r} normalizes with mode={config['mode']}, as only Keras 1 does"
        )
    return {key: value for key, value in config.items() if key not in ("mode", "use_bias")}


def _other(config: dict[str, Any]) -> dict[str, Any]:
    if config.get("data_format") in ("th", "channels_first"):
        raise UnsupportedError(
            f"the layer {config.get('name')!r} has dim_ordering='th', whose kernels have another layout"
        )
    if "data_format" in config:
        config["data_format"] = "channels_last"
    rows, columns = config.pop("nb_row", None), config.pop("nb_col", None)
    if rows is not None:
        config["kernel_size"] = [rows, columns]
    return config


def _objects(config: dict[str, Any]) -> dict[str, Any]:
    """Translate initializers by name, and regularizers as sums of squares; constraints are not translated."""
    for key, value in config.items():
        if key.endswith("_initializer") and isinstance(value, str):
            config[key] = {"class_name": INITIALIZERS.get(value, "GlorotUniform"), "config": {}}
        elif key.endswith("_regularizer") and isinstance(value, Mapping):
            if value.get("name") not in REGULARIZERS:
                raise UnsupportedError(
                    f"the layer {config.get('name')!r} has an {value.get('name')} of Keras 1, which is not translated"
                )
            config[key] = {"class_name": "L1L2", "config": {k: value.get(k, 0.0) for k in ("l1", "l2")}}
        elif key.endswith("_constraint") and value is not None:
            raise UnsupportedError(
                f"the layer {config.get('name')!r} has a constraint of Keras 1, which is not translated"
            )
    return config
