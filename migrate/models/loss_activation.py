"""Find crossentropies after an unsuitable activation: softmax with a loss for sigmoids, or any with from_logits.

TensorFlow 2.4 and later, and Keras 3 on TensorFlow, apply a crossentropy to the input of the last sigmoid or softmax
(`_keras_logits` in `activations.py`), for every loss. Others apply it to the output of the layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from migrate.models import operators
from migrate.models.compiled import named, snake
from migrate.models.masks import RECURRENT
from migrate.state import StoredModel

FITTING = {
    "binary_crossentropy": "sigmoid",
    "binary_focal_crossentropy": "sigmoid",
    "categorical_crossentropy": "softmax",
    "sparse_categorical_crossentropy": "softmax",
}
SOFTMAX = "Softmax"
"""The layer whose values tf.keras uses unchanged."""


@dataclass(frozen=True)
class Last:
    """The layer of an output. `activation`: its last step. `output`: the model's name for the output."""

    output: str
    name: str
    class_name: str
    activation: str


def unfit(model: StoredModel) -> list[tuple[Last, str]]:
    """Outputs whose loss does not match their activation, and the loss."""
    outputs = list(_layers_of_outputs(model.config))
    losses = _loss_of_each_output((model.training or {}).get("loss"), [last.output for last in outputs])
    pairs = zip(outputs, map(named, losses), strict=True)
    return [(last, unfit_loss) for last, loss in pairs if (unfit_loss := _unfit(last, loss))]


def _unfit(last: Last, loss: Any) -> str:
    config = loss.get("config") if isinstance(loss, Mapping) else None
    name = snake(str(loss.get("class_name") if isinstance(loss, Mapping) else loss))
    fitting = FITTING.get(name)
    if fitting is None or last.activation not in FITTING.values():
        return ""
    if isinstance(config, Mapping) and config.get("from_logits"):
        return f"{name}(from_logits=True)"
    return "" if fitting == last.activation else name


def _loss_of_each_output(loss: Any, outputs: Sequence[str]) -> list[Any]:
    several = isinstance(loss, list) or (isinstance(loss, Mapping) and "class_name" not in loss)
    if not several:
        return [loss] * len(outputs)
    if isinstance(loss, Mapping) and any(name in loss for name in outputs):
        return [loss.get(name) for name in outputs]
    losses = list(loss.values()) if isinstance(loss, Mapping) else loss
    return losses if len(losses) == len(outputs) else [None] * len(outputs)


def _layers_of_outputs(model: Any) -> Iterator[Last]:
    config = model.get("config") if isinstance(model, Mapping) else None
    layers = config.get("layers") if isinstance(config, Mapping) else config
    if not isinstance(layers, list) or not layers:
        return
    if not isinstance(config, Mapping) or "output_layers" not in config:
        yield from _last_layers(layers[-1])
        return
    known = {_name(layer): layer for layer in layers if isinstance(layer, Mapping)}
    for end in operators.ends(config["output_layers"]):
        yield from (replace(last, output=str(end[0])) for last in _last_layers(known.get(str(end[0]), {})))


def _last_layers(layer: Mapping[str, Any]) -> Iterator[Last]:
    config = layer.get("config")
    if isinstance(config, list) or (isinstance(config, Mapping) and "layers" in config):
        yield from _layers_of_outputs(layer)
        return
    class_name = str(layer.get("class_name"))
    activation = config.get("activation") if isinstance(config, Mapping) else None
    if class_name in RECURRENT:
        activation = None
    name = _name(layer)
    yield Last(name, name, class_name, "softmax" if class_name == SOFTMAX else str(named(activation)))


def _name(layer: Mapping[str, Any]) -> str:
    config = layer.get("config")
    return str(layer.get("name") or (config.get("name") if isinstance(config, Mapping) else ""))
