"""Find settings of a model that its files do not contain, above all those of Keras 3.

Found by comparing `get_config` of every class of Keras 3.0 to 3.15 with its arguments. docs/limits.md lists rare
settings that leave no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from migrate.bytes.messages import some
from migrate.readers.keras.left_out import PADDING, SCALING, TRANSPOSED
from migrate.readers.keras.model import objects
from migrate.state import Stored, StoredModel

LOSSES = {"Huber": "delta", "CosineSimilarity": "axis"}
"""Losses -> arguments that their `get_config` leaves out (`losses.py` of Keras 3.0 to 3.15)."""


def of_model(model: StoredModel, by_keras3: bool) -> list[str]:
    """Explain why a model may train differently from its file."""
    reasons = _of_keras3(model) if by_keras3 else []
    return [*reasons, *_lost(model.config, STATES)]


def _of_keras3(model: StoredModel) -> list[str]:
    reasons = [*losses(model.training), *weights(model)]
    return [*reasons, *paddings(model.config), *scalings(model.config), *adapted(model)]


def weights(model: StoredModel) -> list[str]:
    """Report one loss with one weight for several outputs."""
    training, inside = model.training or {}, model.config.get("config")
    loss, loss_weights = training.get("loss"), training.get("loss_weights")
    alone = (
        loss is not None and not isinstance(loss, list) and not (isinstance(loss, Mapping) and "class_name" not in loss)
    )
    outputs = inside.get("output_layers") if isinstance(inside, Mapping) else None
    several = isinstance(outputs, Mapping) or (isinstance(outputs, list) and isinstance(next(iter(outputs), 0), list))
    if not alone or not several or len(outputs or ()) < 2:
        return []
    if not isinstance(loss_weights, float) and not (
        isinstance(loss_weights, (list, Mapping)) and len(loss_weights) == 1
    ):
        return []
    return [f"loss_weights {loss_weights!r}: releases of Keras 3 apply it to one output, or to all of them"]


def adapted(model: StoredModel | None) -> list[str]:
    """Name the layers with LoRA factors."""
    return [] if model is None else _lost(model.config, ADAPTED)


def quantized(model: StoredModel | None) -> list[str]:
    """Report layers whose kernel `quantize` has turned into integers, which are not trained."""
    names = [] if model is None else _distinct_names(model.config, _quantized)
    return [f"{some(names)}: quantized after training, so the file contains no kernel to train"] if names else []


def _quantized(config: Mapping[str, Any]) -> str | None:
    policy = config.get("dtype")
    is_so = isinstance(policy, Mapping) and str(policy.get("class_name")).startswith("Quantized")
    return str(config.get("name")) if is_so else None


def _distinct_names(config: Any, named: Callable[[Mapping[str, Any]], str | None]) -> list[str]:
    return list(dict.fromkeys(name for part in objects(config) if (name := named(part)) is not None))


def losses(training: Any) -> list[str]:
    """Report losses with an argument that no Keras 3 saves."""
    if isinstance(training, list):
        return [reason for member in training for reason in losses(member)]
    if not isinstance(training, Mapping):
        return []
    name, config = str(training.get("class_name")), training.get("config")
    key = LOSSES.get(name)
    if key is None or not isinstance(config, Mapping):
        inside = training.get("loss") if "loss" in training else list(training.values())
        return list(dict.fromkeys(losses(inside)))
    return [] if key in config else [f"the loss {name}: Keras 3 does not save its {key}, so the default is used"]


def paddings(config: Any) -> list[str]:
    """Report transposed convolutions whose `output_padding` is unknown."""
    names = _distinct_names(config, _unpadded)
    if not names:
        return []
    return [
        f"{some(names)}: Keras before 3.14 does not save {PADDING}, and the source does not contain the shape"
        " of the layer's output. Right if your program does not set it"
    ]


def scalings(config: Any) -> list[str]:
    """Report layers with one weight whose use is unknown."""
    names = _distinct_names(config, _unscaled)
    if not names:
        return []
    return [f"{some(names)}: Keras before 3.4 does not save {SCALING}; right if your program does not set it"]


def _unscaled(layer: Mapping[str, Any]) -> str | None:
    config = layer.get("config")
    if layer.get("class_name") != "LayerNormalization" or not isinstance(config, Mapping):
        return None
    is_open = SCALING not in config and config.get("center") != config.get("scale")
    return str(config.get("name")) if is_open else None


ADAPTED = (
    "lora_rank",
    "Keras 3 saves the kernel with its LoRA factors (lora_rank) added to it, and starts new factors",
)


def adapted_kernels(stored: Stored) -> list[str]:
    """Do the same for a file without a config, as `save_weights` writes it: slots of a kernel's two factors fit no
    variable there (`enable_lora` of `dense.py` and `base_conv.py`, Keras 3)."""
    shapes = {v.shape for v in stored.variables}
    strange = {array.shape for _, array in stored.weights or () if len(array.shape) > 1} - shapes
    factors = [(one, other) for one in strange for other in strange if len(other) == 2 and one[-1] == other[0]]
    kernels = {(*one[:-1], other[-1]) for one, other in factors}
    names = [v.name for v in stored.variables if v.shape in kernels and stored.traits.has_lora]
    return [f"{some(names)}: {ADAPTED[1]}"] if names else []


STATES = ("stateful", "no file holds the states of a stateful layer; right if your program resets them first")
"""An argument, and its effect on a layer (`save_own_variables` of `dense.py`, `rnn.py`)."""


def _lost(config: Any, argument: tuple[str, str]) -> list[str]:
    key, what = argument
    names = _distinct_names(
        config, lambda part: part["name"] if part.get(key) and isinstance(part.get("name"), str) else None
    )
    return [f"{some(names)}: {what}"] if names else []


def _unpadded(layer: Mapping[str, Any]) -> str | None:
    config = layer.get("config")
    if layer.get("class_name") not in TRANSPOSED or not isinstance(config, Mapping):
        return None
    return str(config.get("name")) if PADDING not in config and _has_choice(config) else None


def _has_choice(config: Mapping[str, Any]) -> bool:
    settings = [config.get(key) for key in ("kernel_size", "strides", "dilation_rate")]
    if not all(isinstance(setting, list) for setting in settings):
        return True
    even = any((kernel - 1) * dilation % 2 for kernel, _, dilation in zip(*settings, strict=True))
    return any(stride != 1 for stride in settings[1] or ()) or (config.get("padding") == "same" and even)
