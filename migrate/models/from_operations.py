"""Express operations between layers of a Keras 3 model as tf.keras's functions of TensorFlow, the inverse of
`operators`. Keras makes masks of layers with such operations, `NotEqual` for an Embedding.

Source: `keras/src/ops` 3.0 to 3.15, `keras/src/ops/node.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from migrate.models import operators
from migrate.models.layers import ADVICE, MODELS
from optim.errors import UnsupportedError

SLICE = "__slice__"
SAME = {"ConvertToTensor": ("dtype", "sparse", "ragged")}
"""Operations that return their input -> the settings that must be None for that."""
SAY_NOTHING = (
    *("InputLayer", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"),
    *("Discretization", "HashedCrossing", "Pipeline"),
)
"""Layers whose config has no `trainable`."""
End = Callable[[Any], list[Any] | None]
"""A tensor in a call of Keras 3 -> [layer, node, tensor]; None for other values."""


def is_operation(layer: Mapping[str, Any]) -> bool:
    """Whether it is no layer. All layers except a few have `trainable`; an `.h5` has no module names."""
    return layer.get("class_name") not in (*MODELS, *SAY_NOTHING) and "trainable" not in layer["config"]


def name_of(layer: Mapping[str, Any]) -> str:
    """The name. Configs of operations have one from 3.10 on."""
    return str(layer.get("name") or layer["config"].get("name"))


def returns_its_input(layer: Mapping[str, Any]) -> bool:
    kept = SAME.get(str(layer.get("class_name"))) if is_operation(layer) else None
    return kept is not None and all(layer["config"].get(key) is None for key in kept)


def function(layer: Mapping[str, Any], end: End) -> dict[str, Any]:
    """Return the equivalent layer of `layers.OPERATORS`. Raises UnsupportedError if TensorFlow lacks it."""
    config, class_name = layer["config"], str(layer["class_name"])
    name = next((name for name, candidate in operators.FUNCTIONS.items() if candidate.class_name == class_name), None)
    if name is None:
        raise UnsupportedError(
            f"the model calls keras.ops.{class_name}, for which this dtopt knows no function of TensorFlow; {ADVICE}"
        )
    operation = operators.FUNCTIONS[name]
    known = {"name", *(theirs for theirs, _ in operation.options.values())}
    for key in config.keys() - known:
        if config[key] not in operation.additional.get(key, (None,)):
            raise _refusal(layer)
    options = {ours: config[theirs] for ours, (theirs, _) in operation.options.items() if theirs in config}
    nodes = [_call(layer, operation, node, options, end) for node in layer.get("inbound_nodes") or []]
    kind = "SlicingOpLambda" if name == operators.SLICING else "TFOpLambda"
    document = {"name": name_of(layer), "trainable": True, "dtype": "float32", "function": name}
    return {"class_name": kind, "name": name_of(layer), "config": document, "inbound_nodes": nodes}


def _call(
    layer: Mapping[str, Any],
    operation: operators.Operator,
    node: Mapping[str, Any],
    options: Mapping[str, Any],
    end: End,
) -> list[Any]:
    args = list(node.get("args", []))
    if len(args) != 1 + len(operation.operands) or node.get("kwargs"):
        raise _refusal(layer)
    operands = {
        name: _operand(layer, operation, arg, end) for name, arg in zip(operation.operands, args[1:], strict=True)
    }
    first = args[0]
    if isinstance(first, list):
        ends = [end(reference) for reference in first]
        if any(reference is None for reference in ends):
            raise _refusal(layer)
        return [[*reference, {**operands, **options}] for reference in ends if reference is not None]
    one = end(first)
    if one is None:
        raise _refusal(layer)
    return [*one, {**operands, **options}]


def _operand(layer: Mapping[str, Any], operation: operators.Operator, item: Any, end: End) -> Any:
    tensor = end(item)
    if tensor is not None:
        return tensor
    if operation.class_name == "GetItem":
        return _subscript(layer, item)
    if not isinstance(item, (bool, int, float)):
        raise _refusal(layer)
    return item


def _subscript(layer: Mapping[str, Any], item: Any) -> Any:
    if isinstance(item, list):
        return [_subscript(layer, part) for part in item]
    if isinstance(item, Mapping) and item.get("class_name") == SLICE:
        return {name: item["config"].get(name) for name in ("start", "stop", "step")}
    if item is not None and not isinstance(item, int):
        raise _refusal(layer)
    return item


def _refusal(layer: Mapping[str, Any]) -> UnsupportedError:
    return UnsupportedError(
        f"the model calls keras.ops.{layer['class_name']} ({name_of(layer)!r}) in a way that a tf_keras config cannot"
        f" express; {ADVICE}"
    )
