"""Keras 1's layers in Keras 2's terms. Source: `keras/layers` 1.2.2, `keras/legacy/interfaces.py` 2.2.4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migrate.models.layers import ADVICE
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
}
DENSE = {"output_dim": "units"}
ROLES = {
    "W": "kernel",
    "b": "bias",
    "gamma": "gamma",
    "beta": "beta",
    "running_mean": "moving_mean",
    "running_std": "moving_variance",
}
"""Tails of Keras 1's weight names. `running_std` holds the variance, whatever it is called."""
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
KNOWN = (
    *("Dense", "Activation", "Dropout", "Flatten", "Reshape", "Permute", "RepeatVector", "InputLayer", "Embedding"),
    *("Convolution1D", "Convolution2D", "BatchNormalization", "MaxPooling1D", "MaxPooling2D"),
    *("AveragePooling1D", "AveragePooling2D", "LeakyReLU", "ELU"),
    *("GlobalAveragePooling1D", "GlobalAveragePooling2D", "GlobalMaxPooling1D", "GlobalMaxPooling2D"),
)
GONE = ("input_dim", "input_length", "create_input_layer", "weights", "activity_regularizer", "dropout")


def role(tail: str, class_name: str) -> str:
    """What Keras 2 calls a weight of a layer of that class whose name ends so in Keras 1."""
    return "embeddings" if (class_name, tail) == ("Embedding", "W") else ROLES.get(tail, tail)


def modern(model: Mapping[str, Any]) -> dict[str, Any]:
    """A model's config with Keras 2's names of arguments. Raises UnsupportedError for layers that are not in KNOWN."""
    config = model.get("config")
    layers = config if isinstance(config, list) else config.get("layers", []) if isinstance(config, Mapping) else []
    found = [_layer(layer) for layer in layers]
    if isinstance(config, Mapping):
        return {**model, "config": {**config, "layers": found}}
    return {**model, "config": {"name": str(model.get("name") or "sequential_1"), "layers": found}}


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
    return {**layer, "config": _objects(special(changed))}


def _dense(config: dict[str, Any]) -> dict[str, Any]:
    return {DENSE.get(key, key): value for key, value in config.items() if key != "input_dim"}


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
        raise UnsupportedError(f"the layer {config.get('name')!r} has dim_ordering='th', whose kernels lie otherwise")
    if "data_format" in config:
        config["data_format"] = "channels_last"
    rows, columns = config.pop("nb_row", None), config.pop("nb_col", None)
    if rows is not None:
        config["kernel_size"] = [rows, columns]
    return config


def _objects(config: dict[str, Any]) -> dict[str, Any]:
    """Initializers by name, regularizers with their sums of squares; constraints are not translated."""
    for key, value in config.items():
        if key.endswith("_initializer") and isinstance(value, str):
            config[key] = {"class_name": INITIALIZERS.get(value, "GlorotUniform"), "config": {}}
        elif key.endswith("_regularizer") and isinstance(value, Mapping):
            config[key] = {"class_name": "L1L2", "config": {k: value.get(k, 0.0) for k in ("l1", "l2")}}
        elif key.endswith("_constraint") and value is not None:
            raise UnsupportedError(
                f"the layer {config.get('name')!r} has a constraint of Keras 1, which is not translated"
            )
    return config
