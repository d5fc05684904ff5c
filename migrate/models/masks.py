"""Follow masks through a model: which layers make them, which pass them on, and which receive them.

Keras 2 and 3 mostly agree: tested on TF 2.4, 2.9, tf_keras 2.21, Keras 3.6 and 3.15. Differences between releases are
reported as a meeting: a mask that reaches a layer that handles it differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from migrate.models import operators
from migrate.models.layers import MERGING, MODELS
from migrate.models.normalized_config import Layer, layer_name, node_shifts

Mask = frozenset[str] | None
"""The layers whose masks are combined in a tensor; None without a mask."""
Meeting = tuple[str, str]
"""(kind, name of the layer)."""
OUTPUT, MERGED, HANDED, VALUED, ATTENTION, MEASURED, DISTRIBUTED, PASSED, RELU, SOFTMAX, CONCATENATED, GIVEN, STATED = (
    "an output of the model",
    "a layer that merges different masks",
    "a layer that merges, whose inputs have one mask",
    "Maximum, Minimum or Multiply",
    "MultiHeadAttention",
    "BatchNormalization",
    "TimeDistributed",
    "Identity, Rescaling or Normalization",
    "ReLU",
    "Softmax",
    "Concatenate",
    "an argument attention_mask",
    "a recurrent layer with an initial state",
)
GROUPED = "GroupNormalization"
HANDS_ON = (
    *("Dense", "Activation", "Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "GaussianNoise"),
    *("GaussianDropout", "AlphaDropout", "LayerNormalization", "GroupNormalization", "UnitNormalization", "Softmax"),
    *("BatchNormalization", "LeakyReLU", "PReLU", "ELU", "ReLU", "ActivityRegularization"),
)
"""Layers with one input that pass its mask on."""
MEETS = {
    "BatchNormalization": MEASURED,
    "ReLU": RELU,
    "Softmax": SOFTMAX,
    "GroupNormalization": GROUPED,
    **dict.fromkeys(("Identity", "Rescaling", "Normalization"), PASSED),
}
GIVEN_IN = {"MultiHeadAttention": {"attention_mask": GIVEN}, "Softmax": {"mask": SOFTMAX}}
"""Arguments of a call with an explicit mask."""
STATE = "initial_state"
"""An argument of a recurrent layer's call; Keras 2 lists it after the sequence."""
CHANGING = ("Maximum", "Minimum", "Multiply")
RECURRENT = ("SimpleRNN", "LSTM", "GRU", "RNN", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D")
TIME = (1, -2)
"""Axes along which masks are concatenated, not combined."""


def makes(item: Any) -> bool:
    """Whether anything in a config makes a mask."""
    if isinstance(item, Mapping):
        is_maker = item.get("class_name") == "Masking" or item.get("mask_zero") is True
        return is_maker or any(makes(member) for member in item.values())
    return isinstance(item, list) and any(makes(member) for member in item)


def meetings(document: Layer) -> list[Meeting]:
    """Return what the masks of a model reach.

    Args:
      document: the result of `normalized_config.canonical`.
    """
    record: dict[Meeting, None] = {}
    for name, mask in _masks_of_outputs(document, [], record):
        if mask:
            record[OUTPUT, name] = None
    return list(record)


def _masks_of_outputs(model: Layer, input_masks: Sequence[Mask], record: dict[Meeting, None]) -> list[tuple[str, Mask]]:
    config = model["config"]
    if model["class_name"] == "Sequential":
        name, masks = layer_name(model), list(input_masks)
        for layer in config["layers"]:
            name, masks = layer_name(layer), _output_masks(layer, masks, record)
        return [(name, mask) for mask in masks[:1]]
    shifts = node_shifts(config)
    ends = [(end[0], end[1] - shifts.get(end[0], 0), end[2]) for end in operators.ends(config["output_layers"])]
    known = _masks_of_calls(config, shifts, input_masks, record)
    return [(name, _at(known.get((name, node), []), tensor)) for name, node, tensor in ends]


def _masks_of_calls(
    config: Mapping[str, Any], shifts: Mapping[str, int], input_masks: Sequence[Mask], record: dict[Meeting, None]
) -> dict[tuple[str, int], list[Mask]]:
    entries = [end[0] for end in operators.ends(config["input_layers"])]
    known = {(name, 0): [_at(input_masks, i)] for i, name in enumerate(entries)}
    nodes = [(layer, i, node) for layer in config["layers"] for i, node in enumerate(layer.get("inbound_nodes") or [])]
    while nodes:
        left = []
        for layer, i, node in nodes:
            needed = [(end[0], end[1] - shifts.get(end[0], 0), end[2]) for end in operators.ends(node)]
            if any((name, call) not in known for name, call, _ in needed):
                left.append((layer, i, node))
                continue
            for argument, kind in GIVEN_IN.get(layer["class_name"], {}).items():
                if any(len(end) > 3 and end[3].get(argument) for end in operators.ends(node)):
                    record[kind, layer_name(layer)] = None
            masks = [_at(known[name, call], tensor) for name, call, tensor in needed]
            if _at(masks, 0) and _is_stated(layer, node):
                record[STATED, layer_name(layer)] = None
            known[layer_name(layer), i] = _output_masks(layer, masks, record)
        if len(left) == len(nodes):  # no Keras could build this graph; writing it reports that
            break
        nodes = left
    return known


def _is_stated(layer: Layer, node: Any) -> bool:
    """Whether a recurrent layer is called with an initial state, and its mask is that of its first input."""
    if layer["class_name"] not in (*RECURRENT, "Bidirectional"):
        return False
    argument_names = [key for end in node if len(end) > 3 for key, value in end[3].items() if value is not None]
    return "mask" not in argument_names and (len(node) > 1 or STATE in argument_names)


def _at(masks: Sequence[Mask], i: int) -> Mask:
    return masks[i] if i < len(masks) else None


def _output_masks(layer: Layer, input_masks: list[Mask], record: dict[Meeting, None]) -> list[Mask]:
    name, kind, config = layer_name(layer), layer["class_name"], layer["config"]
    first = _at(input_masks, 0)
    masked = any(input_masks)
    if kind in MODELS:
        return [mask for _, mask in _masks_of_outputs(layer, input_masks, record)]
    if kind in MEETS and masked:
        record[MEETS[kind], name] = None
    if kind == "Masking" or (kind == "Embedding" and config.get("mask_zero")):
        return [frozenset([name])]
    if kind in MERGING and masked:
        return [_merged(layer, input_masks, record)]
    if kind == "MultiHeadAttention" and masked:
        record[ATTENTION, name] = None
    if kind == "TimeDistributed":
        inner = config["layer"]
        if makes(inner) or (masked and inner["class_name"] not in HANDS_ON):
            record[DISTRIBUTED, name] = None
    if kind in (*HANDS_ON, *MEETS, "Attention", "AdditiveAttention", "MultiHeadAttention", "TimeDistributed"):
        return [first]
    if kind in RECURRENT:
        return [first if config.get("return_sequences") else None]
    if kind == "Bidirectional":
        return [first if config["layer"]["config"].get("return_sequences") else None] * 2
    return [None]


def _merged(layer: Layer, input_masks: list[Mask], record: dict[Meeting, None]) -> Mask:
    if layer["class_name"] in CHANGING:
        record[VALUED, layer_name(layer)] = None
    if layer["class_name"] == "Concatenate":
        record[CONCATENATED, layer_name(layer)] = None
        if layer["config"].get("axis", -1) in TIME and all(input_masks):
            record[HANDED, layer_name(layer)] = None
            return frozenset([layer_name(layer)])
    record[MERGED if len(set(input_masks)) > 1 else HANDED, layer_name(layer)] = None
    return frozenset(_names(input_masks))


def _names(masks: Sequence[Mask]) -> Iterator[str]:
    for mask in masks:
        yield from mask or ()
