"""Find which weights of a Keras model an optimizer trained, and in which order, from `model_config` alone.

No layer is built or imported: the JSON has names, nesting and `trainable`. Keras 1.0.6 to 2.0.5 sorted the trainable
weights by name (`engine/training.py::_collect_trainable_weights`); later releases keep the order of `model.layers`.
Flags may have changed after `compile`, so `orders` checks this reading against the shapes of the slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from migrate.errors import DamagedFileError

MOVING = ("moving_mean", "moving_variance")
RENORM = ("moving_stddev", "renorm_mean", "renorm_stddev")
"""Additional variables of a BatchNormalization with `renorm`, in its order."""
NEVER_TRAINED = (
    *MOVING,
    *RENORM,
    "moving_std",
    "running_mean",
    "running_std",
    "running_variance",
    "moving_mean_sqrt",
    "seed_generator_state",
    "vector_u",
    "idf_weights",
)
"""Suffixes of weight names that Keras's own layers create with `trainable=False`."""
ROLES = frozenset(
    {
        *("kernel", "bias", "recurrent_kernel", "depthwise_kernel", "pointwise_kernel", "embeddings"),
        *("gamma", "beta", *MOVING, *RENORM),
    }
)
"""Suffixes of weight names, and the attributes of Keras's own layers with these weights."""
ADAPTED = ("Normalization",)
"""Keras's own layers whose weights `adapt` computes; no optimizer trains them, whatever their flag."""

PRUNED = {"PruneLowMagnitude": ("mask", "threshold", "pruning_step")}
"""Wrappers of TensorFlow Model Optimization -> their weights with `trainable=False`, as in its 0.8
(`sparsity/keras/pruning_wrapper.py`)."""


@dataclass(frozen=True)
class Leaf:
    """A layer with weights, or a wrapper with everything it wraps. `frozen` is None if the flags inside differ."""

    name: str
    frozen: bool | None
    kind: str = ""
    """Its class."""


def sublayers(config: Any) -> list[Mapping[str, Any]] | None:
    """The layers in a model's config, None for other layers. Up to Keras 2.2.2 Sequential has a bare list."""
    layers = config.get("layers") if isinstance(config, Mapping) else config
    if isinstance(layers, Sequence) and not isinstance(layers, (str, bytes)):
        return [x for x in layers if isinstance(x, Mapping)]
    return None


def layer_name(layer: Mapping[str, Any]) -> str:
    config = layer.get("config")
    inner = config.get("name") if isinstance(config, Mapping) else None
    return str(layer.get("name") or inner or "")


def _is_frozen(layer: Mapping[str, Any]) -> bool | None:
    config = layer.get("config")
    if not isinstance(config, Mapping):
        return False
    if config.get("trainable") is False:
        return True
    inner = [
        config[key]
        for key in ("layer", "cell", "forward_layer", "backward_layer")
        if isinstance(config.get(key), Mapping)
    ]
    if isinstance(config.get("cells"), list):
        inner.extend(x for x in config["cells"] if isinstance(x, Mapping))
    flags = {_is_frozen(x) for x in inner}
    if not flags or flags == {False}:
        return False
    return True if flags == {True} else None


def leaves(layer: Mapping[str, Any], above: bool = False, by_model: bool = True) -> Iterator[Leaf]:
    """Yield the leaves of one layer of a model, including nested models, in the order of `model.layers`.

    Args:
      by_model: whether a frozen model trains nothing. In Keras 3 freezing a model freezes its layers, and some may be
        made trainable again.
    """
    config = layer.get("config")
    inner = config.get("layer") if isinstance(config, Mapping) else None
    children = sublayers(config) if config is not None else None
    is_frozen_here = isinstance(config, Mapping) and config.get("trainable") is False
    frozen = above or (is_frozen_here and (by_model or children is None))
    if children is None and isinstance(inner, Mapping):
        children = sublayers(inner.get("config")) if isinstance(inner.get("config"), (Mapping, list)) else None
    if children is None:
        yield Leaf(layer_name(layer), True if frozen else _is_frozen(layer), str(layer.get("class_name")))
        return
    for child in children:
        yield from leaves(child, frozen, by_model)


def never_trained(weight: str) -> bool:
    tail = weight.split(":")[0].rsplit("/", 1)[-1]
    return any(tail == n or tail.endswith("_" + n) for n in NEVER_TRAINED)


def _owners(layer_leaves: Sequence[Leaf], weights: Sequence[str]) -> list[Leaf | None]:
    """The leaf whose name is part of a weight's name: `a/dense/kernel:0` or, in Keras 1, `dense_1_W:0`; None if several
    match."""
    by_name, count = {leaf.name: leaf for leaf in layer_leaves}, Counter(leaf.name for leaf in layer_leaves)
    owners: list[Leaf | None] = []
    for weight in weights:
        name = _layer_of_weight(weight.split(":")[0].split("/"), by_name)
        if name is None:
            owners.append(layer_leaves[0] if len(layer_leaves) == 1 else None)
        else:
            owners.append(by_name[name] if count[name] == 1 else None)
    return owners


def _layer_of_weight(parts: list[str], names: Collection[str]) -> str | None:
    for end in range(len(parts) - 1, 0, -1):
        ending = ("/".join(parts[start:end]) for start in range(end))
        layer = next((name for name in ending if name in names), None)
        if layer is not None:
            return layer
    begun = [parts[0][:i] for i, c in enumerate(parts[0]) if i and c == "_"]
    return next((name for name in reversed(begun) if name in names), None)


def _is_pruning(leaf: Leaf, weight: str) -> bool:
    return weight.split(":")[0].rsplit("/", 1)[-1] in PRUNED.get(leaf.kind, ())


def trainable_flags(
    layer: Mapping[str, Any] | None, weights: Sequence[str], by_model: bool = True
) -> list[bool | None]:
    """For each weight of one top-level layer: True, False, or None if the config does not show it. `by_model`: see
    `leaves`."""
    layer_leaves = list(leaves(layer, by_model=by_model)) if layer is not None else []
    flags: list[bool | None] = []
    for weight, leaf in zip(weights, _owners(layer_leaves, weights), strict=True):
        if never_trained(weight) or (leaf is not None and (leaf.kind in ADAPTED or _is_pruning(leaf, weight))):
            flags.append(False)
        elif leaf is None or leaf.frozen is None:
            flags.append(None)
        else:
            flags.append(not leaf.frozen)
    return flags


def trained_order(layer: Mapping[str, Any] | None, weights: Sequence[str]) -> list[int]:
    """Places of the weights of one top-level layer in the order of the layers in it, untrained ones last.

    Saving puts frozen weights after trained ones (`hdf5_format.py::_legacy_weights` of TF 2.4, `weights` of Keras 2.2).
    So if flags differ inside a layer or model, its saved order is not the order in which all of it is trained.
    """
    layer_leaves = list(leaves(layer)) if layer is not None else []
    owners = _owners(layer_leaves, weights)
    if None in owners:
        return list(range(len(weights)))

    number = {id(leaf): n for n, leaf in enumerate(layer_leaves)}

    def place(i: int) -> tuple[bool, int, bool]:
        at = number[id(owners[i])]
        is_backward = any(part.startswith("backward_") for part in weights[i].split("/")[:-1])
        return never_trained(weights[i]), at, layer_leaves[at].kind == "Bidirectional" and is_backward

    return sorted(range(len(weights)), key=place)


def top_layers(model_config: Any) -> dict[str, Mapping[str, Any]]:
    """Top-level layers of a model by name; empty if there is no readable config."""
    if not isinstance(model_config, Mapping):
        return {}
    return {layer_name(layer): layer for layer in sublayers(model_config.get("config")) or ()}


def check_inputs(model: Any, path: str) -> None:
    """Refuse a functional model that lists a layer before its input. Each release sorts layers by depth, and an
    optimizer trains their weights in that order.

    Raises:
      DamagedFileError: with the two layers.
    """
    wrong = _late_input(model) if isinstance(model, Mapping) else None
    if wrong is not None:
        raise DamagedFileError(
            f"{path}: its model lists the layer {wrong[0]!r} before its input {wrong[1]!r}, and no release"
            " does; copy the file again"
        )


def _late_input(layer: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first such layer, here or in a nested model, and its input."""
    listed = sublayers(layer.get("config")) or []
    names = {layer_name(sublayer) for sublayer in listed}
    seen: set[str] = set()
    for sublayer in listed:
        calls = sublayer.get("inbound_nodes")
        inputs = [set(_input_names(call)) & names for call in calls] if isinstance(calls, list) else []
        if inputs and all(sources - seen for sources in inputs):  # one of several calls may be on a later layer
            return layer_name(sublayer), min(inputs[0] - seen)
        seen.add(layer_name(sublayer))
        within = _late_input(sublayer)
        if within is not None:
            return within
    return None


def _input_names(call: Any) -> Iterator[str]:
    if isinstance(call, Mapping):
        history = call.get("keras_history")
        if isinstance(history, list) and history and isinstance(history[0], str):
            yield history[0]
        else:
            yield from (name for value in call.values() for name in _input_names(value))
    elif isinstance(call, list):
        is_end = len(call) > 2 and isinstance(call[0], str) and isinstance(call[1], int) and isinstance(call[2], int)
        yield from [call[0]] if is_end else []
        yield from (name for value in call[3 if is_end else 0 :] for name in _input_names(value))


def objects(item: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every JSON object in an item, outer ones first, in order."""
    rest = [item]
    while rest:
        member = rest.pop()
        if isinstance(member, Mapping):
            yield member
            rest.extend(reversed(list(member.values())))
        elif isinstance(member, (list, tuple)):
            rest.extend(reversed(member))


def class_names(config: Any) -> set[str]:
    """Class names of everything in a config: layers, nested layers, and their objects."""
    return {member["class_name"] for member in objects(config) if isinstance(member.get("class_name"), str)}


def names_of_class(config: Any, kind: str) -> set[str]:
    """Names of the layers of a class in a model's config, at any depth."""
    return {layer_name(layer) for layer in objects(config) if layer.get("class_name") == kind}
