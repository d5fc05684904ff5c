"""Translate the loss and metrics of a compiled model: stock ones are migrated, by name.

Training continues only with the same loss. Metrics change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

LOSSES = {
    "mean_squared_error": "MeanSquaredError",
    "mean_absolute_error": "MeanAbsoluteError",
    "mean_absolute_percentage_error": "MeanAbsolutePercentageError",
    "mean_squared_logarithmic_error": "MeanSquaredLogarithmicError",
    "squared_hinge": "SquaredHinge",
    "hinge": "Hinge",
    "categorical_hinge": "CategoricalHinge",
    "huber": "Huber",
    "log_cosh": "LogCosh",
    "categorical_crossentropy": "CategoricalCrossentropy",
    "sparse_categorical_crossentropy": "SparseCategoricalCrossentropy",
    "binary_crossentropy": "BinaryCrossentropy",
    "kl_divergence": "KLDivergence",
    "poisson": "Poisson",
    "cosine_similarity": "CosineSimilarity",
    "binary_focal_crossentropy": "BinaryFocalCrossentropy",
    "categorical_focal_crossentropy": "CategoricalFocalCrossentropy",
}
ONLY_3 = {
    "dice": "Dice",
    "tversky": "Tversky",
    "circle": "Circle",
    "categorical_generalized_cross_entropy": "CategoricalGeneralizedCrossEntropy",
}
"""Losses that only Keras 3 has."""
SHORT = {
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error",
    "kld": "kl_divergence",
    "kullback_leibler_divergence": "kl_divergence",
    "logcosh": "log_cosh",
    "huber_loss": "huber",
}
OPTIONS = (
    *("from_logits", "label_smoothing", "delta", "axis", "ignore_class"),
    *("gamma", "alpha", "apply_class_balancing", "beta", "margin", "remove_diagonal", "q"),
)
REDUCTIONS = ("auto", "sum_over_batch_size", "sum", "none")
REDUCTIONS_3 = (*REDUCTIONS, "mean", "mean_with_sample_weight")
ACCURACIES = ("accuracy", "acc", "binary_accuracy", "categorical_accuracy", "sparse_categorical_accuracy")
"""Names under which `accuracy` is compiled, and the functions that tf.keras 2.4 and later choose for it."""
METRICS = (
    *(*ACCURACIES, "top_k_categorical_accuracy", "sparse_top_k_categorical_accuracy"),
    *("mae", "mse", "mape", "msle", *LOSSES),
)


def compile_arguments(training: Mapping[str, Any] | None, notes: list[str], for_keras3: bool) -> dict[str, Any]:
    """Return `loss`, `loss_weights`, `metrics`, `weighted_metrics` by name, or as `{"class_name", "config"}`.

    Parts that the target does not have are left out: `without_loss` reports a loss, and `notes` metrics.
    """
    training = training or {}
    loss = _convert_each(training.get("loss"), _loss_of_keras3 if for_keras3 else _loss)
    loss = None if loss is NotImplemented else loss
    arguments = {"loss": loss, "loss_weights": _plain_weights(training.get("loss_weights"))}
    for key in ("metrics", "weighted_metrics"):
        lost: list[Any] = []
        metrics = _convert_each(_known_metrics(training.get(key), lost), _metric)
        if lost:
            named_ones = ", ".join(_shown(_called(item)) for item in lost)
            notes.append(f"{key} without {named_ones}, which dtopt does not translate; training does not depend on it")
        arguments[key] = metrics if _has_any(metrics) else None
    return arguments


def _known_metrics(item: Any, lost: list[Any]) -> Any:
    """Return metrics without those that have no name in Keras, which are added to `lost`."""
    if isinstance(item, list):
        return [_known_metrics(x, lost) for x in item if isinstance(x, list) or not _is_lost(x, lost)]
    if isinstance(item, Mapping) and "class_name" not in item:
        return {key: _known_metrics(x if isinstance(x, list) else [x], lost) for key, x in item.items()}
    return None if _is_lost(item, lost) else item


def _has_any(metrics: Any) -> bool:
    members = metrics.values() if isinstance(metrics, Mapping) else metrics
    return any(map(_has_any, members)) if isinstance(metrics, (list, Mapping)) else metrics is not None


def _is_lost(item: Any, lost: list[Any]) -> bool:
    is_lost = item is not None and _metric(item) is NotImplemented
    lost += [item] if is_lost else []
    return is_lost


def _called(item: Any) -> Any:
    """Return the name of a metric, as far as it has one."""
    if not isinstance(item, Mapping):
        return item
    config = item.get("config")
    return (config.get("name") if isinstance(config, Mapping) else config) or item.get("class_name")


def without_loss(training: Mapping[str, Any] | None, compiled: Mapping[str, Any]) -> list[str]:
    """Report a loss that the target is written without."""
    loss = (training or {}).get("loss")
    if not loss or compiled.get("loss", loss) is not None:
        return []
    return [
        f"the loss {_shown(loss)} is not in the target's Keras, so the model is written without a loss."
        " Compile it with optimizer=model.optimizer and your loss before you continue training"
    ]


def _shown(item: Any) -> str:
    text = str(item)
    return text if len(text) < 80 else text[:77] + "..."


def _plain_weights(weights: Any) -> Any:
    return weights if weights or isinstance(weights, float) else None


def _convert_each(item: Any, convert: Any) -> Any:
    if item is None or item == [] or item == {}:
        return None
    if isinstance(item, list):
        members = [_convert_each(x, convert) for x in item]
        return NotImplemented if any(x is NotImplemented for x in members) else members
    if isinstance(item, Mapping) and "class_name" not in item:
        named = {str(k): _convert_each(v, convert) for k, v in item.items()}
        return NotImplemented if any(x is NotImplemented for x in named.values()) else named
    return convert(item)


def _loss_of_keras3(item: Any) -> Any:
    return _loss(item, {**LOSSES, **ONLY_3}, REDUCTIONS_3)


def _loss(item: Any, losses: Mapping[str, str] = LOSSES, reductions: Sequence[str] = REDUCTIONS) -> Any:
    item = named(item)
    if isinstance(item, str):
        name = SHORT.get(item.lower(), item)
        name = name if name in losses else snake(name)
        return name if name in losses else NotImplemented
    if not isinstance(item, Mapping) or item.get("class_name") not in losses.values():
        return NotImplemented
    config = item.get("config") or {}
    reduction = config.get("reduction", "auto")
    if reduction not in reductions:
        return NotImplemented
    kept = {key: config[key] for key in OPTIONS if config.get(key) is not None}
    kept["reduction"] = "sum_over_batch_size" if reduction == "auto" else reduction
    return {"class_name": item["class_name"], "config": {"name": config.get("name"), **kept}}


def _metric(item: Any) -> Any:
    if isinstance(item, Mapping) and item.get("class_name") == "MeanMetricWrapper":
        config = item.get("config") or {}
        item = named(config.get("fn"))
        if config.get("name") in ACCURACIES[:2] and item in ACCURACIES:
            item = config["name"]
    item = named(item)
    return item if isinstance(item, str) and item in METRICS else NotImplemented


def named(item: Any) -> Any:
    """A function by its name, as Keras 3 writes it."""
    is_function = isinstance(item, Mapping) and item.get("class_name") == "function"
    return item.get("config") if is_function else item


def hinges(training: Mapping[str, Any] | None) -> list[str]:
    """The names of a model's losses with labels of -1 and 1."""
    loss = (training or {}).get("loss")
    losses = loss.values() if isinstance(loss, Mapping) else loss if isinstance(loss, list) else [loss]
    names = (snake(str(item.get("class_name") if isinstance(item, Mapping) else item)) for item in losses)
    return list(dict.fromkeys(name for name in names if name in ("hinge", "squared_hinge")))


def snake(name: str) -> str:
    """`MeanSquaredError` -> mean_squared_error."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def for_keras3(arguments: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
    """Return Keras 3's `compile_config` without the optimizer.

    Args:
      outputs: names of the model's outputs; Keras 3 needs a loss and a weight for each.
    """
    settings = {**arguments, **for_outputs(arguments, outputs)}
    rest = {"run_eagerly": False, "steps_per_execution": 1, "jit_compile": False}
    return {**{key: _serialized(value) for key, value in settings.items()}, **rest}


def for_outputs(arguments: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
    """Give each output a loss and weights, as Keras 3.10 to 3.15 require; other releases do not."""
    loss, weights = arguments.get("loss"), arguments.get("loss_weights")
    if isinstance(loss, Mapping) and "class_name" not in loss:
        loss = {**dict.fromkeys(outputs), **loss}
    elif loss is not None and not isinstance(loss, list) and isinstance(weights, list):
        loss = [loss] * len(weights)
    elif loss is not None and not isinstance(loss, list) and isinstance(weights, Mapping):
        loss = dict.fromkeys(outputs, loss)
    if isinstance(weights, Mapping):
        weights = {**dict.fromkeys(outputs, 1.0), **weights}
    return {"loss": loss, "loss_weights": weights}


def _serialized(item: Any) -> Any:
    if isinstance(item, list):
        return [_serialized(x) for x in item]
    if isinstance(item, Mapping) and "class_name" in item:
        name = {"module": "keras.losses", "class_name": item["class_name"], "registered_name": None}
        return {**name, "config": dict(item["config"])}
    return {key: _serialized(value) for key, value in item.items()} if isinstance(item, Mapping) else item
