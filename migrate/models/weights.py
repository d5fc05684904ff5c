"""Assign the variables of a source to the weights of its model's layers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from migrate.bytes.messages import some
from migrate.models import keras1
from migrate.models.layers import ADVICE, KINDS
from migrate.models.normalized_config import Layer, Leaf, inner_layers, layer_name, leaves
from migrate.models.places import places
from migrate.readers.keras.tree import WINDOWS_SEPARATOR
from migrate.state import Stored, StoredModel
from optim.errors import MismatchError, UnsupportedError

Place = tuple[tuple[str, ...], str]
"""(path of a layer, role of a weight)."""
Shapes = Mapping[str, tuple[int, ...]]
SHAPE_KEPT = (
    *("Dropout", "SpatialDropout1D", "GaussianDropout", "GaussianNoise", "AlphaDropout", "Activation", "Masking"),
    *("ReLU", "LeakyReLU", "ELU", "LayerNormalization", "BatchNormalization"),
)
"""Layers whose output has the shape of their input."""
DEPENDENCIES = "_layer_checkpoint_dependencies"
"""The group of a model's layers in tf.keras 2.12 to 2.14."""
DEPTHWISE = "depthwise_kernel"
"""Keras 3's names of `kernel` in layers with no other."""
PARTS = ("query", "key", "value", "attention_output")


def assign(stored: Stored, model: StoredModel, document: Layer) -> dict[Place, str]:
    """Return the name of the variable of each weight of a model.

    Args:
      document: `model.config` as `normalized_config.canonical` returns it.

    Raises:
      MismatchError: the weights and the description of the model do not belong together.
    """
    every = list(leaves(document))
    assignments: dict[Place, str] = {}
    if model.groups is None:
        assignments = _by_place(stored, document, every)
    else:
        for layer, members in model.groups.items():
            inside = [leaf for leaf in every if not layer or leaf.path[0] == layer]
            assignments |= _by_name(members, inside, stored.traits.has_keras1_layers, ordered=bool(layer))
    _check(assignments, every)
    return assignments


def settle_input(document: Layer, assignments: Mapping[Place, str], shapes: Shapes) -> None:
    """Write missing dims of a Sequential's input that Keras needs to build it: those that its first layer, a
    Normalization, was adapted to, and the length of an Embedding's input.

    Args:
      assignments: the result of `assign`. shapes: of the source's variables.

    Raises:
      UnsupportedError: layers between that Embedding and a Flatten change the length in an unknown way.
    """
    if document["class_name"] == "Sequential":
        _settle_adapted(document["config"]["layers"][:2], assignments, shapes)
        _settle_flattened(document["config"]["layers"], assignments, shapes)


def settle_dtypes(document: Layer, assignments: Mapping[Place, str], dtypes: Mapping[str, str]) -> list[str]:
    """Write the dtype of each layer whose config lacks it, or has that of its input, as in Keras before 2.3.

    Those layers have the dtype of their weights; layers without weights that of the whole model, if it has one.

    Args:
      assignments: the result of `assign`. dtypes: of the source's variables.

    Returns:
      The layers with weights of float64.
    """
    of_layer: dict[tuple[str, ...], str] = {}
    for (path, _), variable in assignments.items():
        if dtypes[variable].startswith(("float", "bfloat")):
            of_layer[path] = dtypes[variable]
    whole = set(of_layer.values())
    for leaf in leaves(document):
        shared = next(iter(whole)) if len(whole) == 1 and "dtype" not in leaf.config else None
        dtype = of_layer.get(leaf.path, shared)
        if dtype is not None and leaf.class_name != "InputLayer" and dtype != variable_dtype(leaf.config.get("dtype")):
            _set_dtype({"class_name": leaf.class_name, "config": leaf.config}, dtype)
    return [path[-1] for path, dtype in of_layer.items() if dtype == "float64"]


def variable_dtype(policy: Any) -> str:
    """The dtype of a layer's variables by its config's dtype, which may be a mixed policy."""
    return "float32" if policy is None or str(policy).startswith("mixed_") else str(policy)


def _set_dtype(layer: Layer, dtype: str) -> None:
    layer["config"]["dtype"] = dtype
    for inner in inner_layers(layer):
        _set_dtype(inner, dtype)


def _settle_adapted(layers: Sequence[Layer], assignments: Mapping[Place, str], shapes: Shapes) -> None:
    layer = next((candidate for candidate in layers if candidate["class_name"] == "Normalization"), None)
    name = assignments.get(((layer_name(layer),), "mean")) if layer is not None else None
    if layer is None or name is None or layers[0]["class_name"] not in ("InputLayer", "Normalization"):
        return
    axes = layer["config"].get("axis")
    for shape in (input_layer["config"].get("batch_input_shape") for input_layer in layers):
        if isinstance(shape, list) and isinstance(axes, list) and len(axes) == len(shapes[name]):
            for axis, size in zip(axes, shapes[name], strict=True):
                shape[axis] = size if shape[axis] is None else shape[axis]


def _settle_flattened(layers: Sequence[Layer], assignments: Mapping[Place, str], shapes: Shapes) -> None:
    """Find the length from the Dense after a Flatten: tf.keras of TF 2.0 and 2.1 omits the length of an Input."""
    at = next((k for k, layer in enumerate(layers[:2]) if layer["class_name"] == "Embedding"), None)
    inputs = [shape for layer in layers[:2] if isinstance(shape := layer["config"].get("batch_input_shape"), list)]
    if at is None or not inputs or inputs[0][1:] != [None]:
        return
    rest = [layer for layer in layers[at + 1 :] if layer["class_name"] not in SHAPE_KEPT]
    flat = next((k for k, layer in enumerate(rest) if not _keeps_length(layer)), len(rest))
    if [layer["class_name"] for layer in rest[flat : flat + 2]] != ["Flatten", "Dense"]:
        return
    if flat > 0:
        raise UnsupportedError(
            f"the model does not contain the length of its input, which its layer {layer_name(rest[flat])!r} needs"
            f"; {ADVICE}"
        )
    width = layers[at]["config"]["output_dim"]
    length = shapes[assignments[(layer_name(rest[1]),), "kernel"]][0] // width
    for shape in inputs:
        shape[1:] = [length] if shape[1:] == [None] else shape[1:]


def _keeps_length(layer: Layer) -> bool:
    config = layer["config"]
    inner = config.get("layer") or {}
    if config.get("return_sequences") or inner.get("config", {}).get("return_sequences"):
        return True
    return re.fullmatch(r"Dense|TimeDistributed|(?!Global)\w+1D", layer["class_name"]) is not None


def _check(assignments: Mapping[Place, str], every: Sequence[Leaf]) -> None:
    lacking = [
        "/".join((*leaf.path, weight.role))
        for leaf in every
        for weight in KINDS[leaf.class_name].weights(leaf.config)
        if (leaf.path, weight.role) not in assignments
    ]
    if lacking:
        raise MismatchError(f"the source's model does not contain some of its weights: {some(lacking)}; {ADVICE}")


def _by_place(stored: Stored, document: Layer, every: Sequence[Leaf]) -> dict[Place, str]:
    """Assign weights of a `.keras` file by group and number. Only group counters show whether layers were counted
    twice."""
    there = {_normal(v.array.stored_as): v.name for v in stored.variables if v.array is not None}
    return max((_at_places(there, document, every, twice) for twice in (False, True)), key=len)


def _at_places(there: Mapping[str, str], document: Layer, every: Sequence[Leaf], twice: bool) -> dict[Place, str]:
    groups = {path: group for path, group, _ in places(document, twice=twice)}
    assignments = {}
    for leaf in every:
        for weight in KINDS[leaf.class_name].weights(leaf.config):
            name = there.get(f"{groups[leaf.path]}/{weight.place}")
            if name is not None:
                assignments[leaf.path, weight.role] = name
    return assignments


def _normal(place: str) -> str:
    """Remove the underscores of private attributes, and name the list of layers as in tf.keras 2.15."""
    plain = place.replace(WINDOWS_SEPARATOR, "/").strip("/").replace(DEPENDENCIES, "layers")
    return "/".join(part.lstrip("_") for part in plain.split("/"))


def _by_name(
    members: Sequence[tuple[str, str]], inside: Sequence[Leaf], keras_1: bool, ordered: bool
) -> dict[Place, str]:
    """Assign weights whose names show layer and role; layers of one name in turn. `ordered`: as in the file."""
    weighted = [leaf for leaf in inside if KINDS[leaf.class_name].weights(leaf.config)]
    assignments: dict[Place, str] = {}
    rest: list[tuple[str, str]] = []
    for weight, variable in members:
        readings = [(leaf.path, role) for leaf, role in _possible_readings(weight, weighted, keras_1)]
        place = next((p for p in readings if p not in assignments), None)
        if place is None:
            rest.append((weight, variable))
        else:
            assignments[place] = variable
    if rest and ordered:
        _check_order(members, assignments, weighted)
    return assignments | _assigned_in_order(
        rest, [place for place in legacy_order(weighted) if place not in assignments]
    )


def _check_order(
    members: Sequence[tuple[str, str]], assignments: Mapping[Place, str], weighted: Sequence[Leaf]
) -> None:
    """Refuse weights and layers that are numbered differently: some names match no layer, others contradict their
    place. TF 1.2's Keras does so, where `dense_1` of a nested model has `dense/kernel`."""
    order = {variable: place for place, variable in _assigned_in_order(members, legacy_order(weighted)).items()}
    other = next(((v, place) for place, v in assignments.items() if order.get(v, place) != place), None)
    if other is not None:
        variable, place = other
        raise MismatchError(
            f"{variable} has the name of a weight of the layer {place[0][-1]}, but the position of a weight of"
            f" {order[variable][0][-1]}: weights and layers are numbered differently; {ADVICE}"
        )


def _assigned_in_order(rest: Sequence[tuple[str, str]], places_left: Sequence[Place]) -> dict[Place, str]:
    tails = [re.sub(r"_\d+$", "", weight.split(":")[0].rsplit("/", 1)[-1]) for weight, _ in rest]
    if tails != [role.rsplit("/", 1)[-1] for _, role in places_left]:
        return {}
    return {place: variable for place, (_, variable) in zip(places_left, rest, strict=True)}


def legacy_order(inside: Sequence[Leaf]) -> list[Place]:
    """The weights of one top-level layer as HDF5 files list them: trained ones, then the others.

    Source: `keras/saving/legacy/hdf5_format.py::_legacy_weights` and `keras/engine/base_layer.py` 2.15.
    """
    every = [(leaf, w) for leaf in inside for w in KINDS[leaf.class_name].weights(leaf.config)]
    first = [(leaf.path, w.role) for leaf, w in every if w.trainable and not (w.frozen or leaf.frozen)]
    return [*first, *(place for leaf, w in every if (place := (leaf.path, w.role)) not in first)]


def _possible_readings(weight: str, weighted: Sequence[Leaf], keras_1: bool) -> Iterator[tuple[Leaf, str]]:
    if keras_1:
        yield from _readings_1(weight.removesuffix(":0"), weighted)
        return
    parts = weight.split(":")[0].split("/")
    named = [leaf for leaf in weighted if f"/{leaf.path[-1]}/" in "/" + "/".join(parts[:-1]) + "/"]
    longest = max((len(leaf.path[-1]) for leaf in named), default=0)
    chosen = [leaf for leaf in named if len(leaf.path[-1]) == longest] or (weighted if len(weighted) == 1 else [])
    for leaf in chosen:
        roles = {w.role for w in KINDS[leaf.class_name].weights(leaf.config)}
        role = _role(parts, roles)
        if role in roles:
            yield leaf, role


def _readings_1(weight: str, weighted: Sequence[Leaf]) -> Iterator[tuple[Leaf, str]]:
    """Do the same for Keras 1: `dense_1_W`, or `dense_1_W_1` if the graph has another of that name."""
    owners = [(start, leaf, kind, part) for leaf in weighted for start, kind, part in _owners_1(leaf)]
    for start, leaf, kind, part in sorted(owners, key=lambda owner: -len(owner[0])):
        if weight.startswith(start):
            role = part + keras1.role(re.sub(r"_\d+$", "", weight.removeprefix(start)), kind)
            if role in {w.role for w in KINDS[leaf.class_name].weights(leaf.config)}:
                yield leaf, role


def _owners_1(leaf: Leaf) -> Iterator[tuple[str, str, str]]:
    """Yield (prefix of weight names, class, part) of a layer, or of those in it."""
    inner = leaf.config.get("layer")
    if inner is None:
        yield f"{leaf.path[-1]}_", leaf.class_name, ""
        return
    name, kind = layer_name(inner), inner["class_name"]
    if leaf.class_name != "Bidirectional":
        yield f"{name}_", kind, ""
        return
    for part in ("forward", "backward"):
        for plain in dict.fromkeys((name, name.removeprefix("forward_"))):  # before 1.2 the config has the part's name
            yield f"{part}_{plain}_", kind, f"{part}/"


def _role(parts: Sequence[str], roles: set[str]) -> str:
    tail = parts[-1] if parts[-1] in roles else re.sub(r"_\d+$", "", parts[-1])
    if tail in roles:
        return tail
    if tail == "kernel" and DEPTHWISE in roles:
        return DEPTHWISE
    for part in reversed(parts[:-1]):
        for prefix in ("forward", "backward"):
            if part.startswith(prefix + "_") and f"{prefix}/{tail}" in roles:
                return f"{prefix}/{tail}"
        if part in PARTS:
            return f"{part}/{tail}"
    return tail
