"""`model.save("x.h5")` of Keras 1 and 2, tf.keras, tf_keras: model, weights and optimizer in one HDF5 file.

Upstream: `keras/models.py` (1.0.7 - 2.0), `keras/engine/saving.py` (2.2),
  `tensorflow/python/keras/saving/hdf5_format.py`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import h5py
import numpy as np

from migrate import claims
from migrate.algorithms.wrappers import innermost, unwrapped
from migrate.bytes import hdf5, json_text
from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import some
from migrate.errors import DamagedFileError
from migrate.facts.lists import OWNERS, SORTED
from migrate.generations import traits
from migrate.readers.branches import on_condition
from migrate.readers.keras import early
from migrate.readers.keras.layers import misplaced
from migrate.readers.keras.left_out import complete
from migrate.readers.keras.model import (
    check_inputs,
    class_names,
    names_of_class,
    top_layers,
    trainable_flags,
    trained_order,
)
from migrate.releases.narrowing import candidates
from migrate.releases.recognition import from_hdf5
from migrate.releases.versions import Versions, version_tuple
from migrate.state import Effects, Stored, StoredModel, StoredVariable
from optim.errors import UnsupportedError

NAME = "h5"
NOT_COMPILED = (
    "the model was not compiled, or with an optimizer of tf.train, which Keras keeps in TensorFlow checkpoints only"
)
SAVED_WEIGHTS = "it was written by save_weights, which saves only the model"
WEIGHTS = "model_weights"
WITHOUT_OPTIMIZER = "it was saved with include_optimizer=False, or by a release that did not save this optimizer"


def sniff(path: str) -> bool:
    """Whether it is HDF5 with the groups of `model.save`, or of `save_weights` in the same old format."""
    if not hdf5.is_hdf5(path):
        return False
    with hdf5.opened(path) as file:
        return WEIGHTS in file or "optimizer_weights" in file or "layer_names" in file.attrs


def read(path: str, generation: str | None = None) -> Stored:
    """Return everything that the file has of its optimizer, in the file's own terms.

    Args:
      path: the `.h5` file.
      generation: one of `generations.GENERATIONS`, for a file that does not show it.

    Raises:
      DamagedFileError: it is truncated, or contradicts itself.
    """
    with hdf5.opened(path, attributes=True) as file:
        training = _json_attribute(file, "training_config", path)
        optimizer = _optimizer_config(training)
        weights = _optimizer_weights(file, path)
        why = NOT_COMPILED if training is None else WITHOUT_OPTIMIZER
        no_state = "" if weights is not None else _no_state(path, why if WEIGHTS in file else SAVED_WEIGHTS)
        weights = weights or ()
        version = hdf5.text_attribute(file, "keras_version")
        inner = innermost(optimizer)
        file_generation, shown = from_hdf5(
            version,
            "backend" in file.attrs,
            str(inner.get("class_name", "")),
            inner.get("config", {}),
            [n for n, _ in weights],
        )
        generation = file_generation or generation
        outer_weights, weights = _wrapper_and_inner(weights) if traits(generation).lists_loss_scale else ((), weights)
        stored_model = _json_attribute(file, "model_config", path)
        model = early.later(stored_model, hdf5.name_list(_group(file, path), "layer_names") or [])
        variables, groups = _variables(file, path, model, generation, version)
        backend = _backend(file, [n for n, _ in weights], version)
        doubts = claims.remembered(_json_attribute(file, claims.REMEMBERED, path))
        _check_backend(backend, model, path)
        if traits(generation).has_keras3_layers and isinstance(model, Mapping):
            model = complete(model, [f"{layer}/{name}" for layer, pairs in groups.items() for name, _ in pairs])
    in_graph = any(name.startswith("training") for name, _ in weights)
    release = _told_by_metrics(version, training) or _told_by_order(version, training)
    after, before = _bounds_by_layers(version, stored_model)
    versions = Versions(version or "", backend or "", release or "", after, before, in_graph)
    return Stored(
        NAME,
        generation,
        ("HDF5 with the groups model_weights and optimizer_weights", *shown),
        optimizer,
        variables,
        weights=weights,
        versions=versions,
        unmapped=dict(outer_weights),
        model=StoredModel(model, training, groups) if isinstance(model, Mapping) else None,
        sparse=_embedding_weights(model, groups)
        if traits(generation).has_keras1_layers and isinstance(model, Mapping)
        else None,
        doubts=doubts,
        no_state=no_state,
        effects=Effects()
        if unwrapped(optimizer)[1] or traits(generation).is_native
        else Effects.of(on_condition(name for name, _ in weights)),
    )


def _embedding_weights(model: Mapping[str, Any], groups: Groups) -> frozenset[str]:
    layers = {f"{name}_W" for name in names_of_class(model, "Embedding")}
    return frozenset(v for pairs in groups.values() for weight, v in pairs if weight.removesuffix(":0") in layers)


def _no_state(path: str, why: str) -> str:
    return f"{path} holds no optimizer state: {why}; migrate the checkpoint that the training run itself wrote"


def _backend(file: h5py.File, names: Sequence[str], version: str | None) -> str | None:
    """The backend, by variable names: Keras 1 does not write it. TensorFlow's end in `:0`, Theano's do not."""
    stored = hdf5.text_attribute(file, "backend")
    if stored is not None or (version_tuple(version) or (1,))[0] != 1:
        return stored
    group = _group(file, file.filename)
    layers = (
        hdf5.name_list(group[name], "weight_names") or [] for name in group if isinstance(group[name], h5py.Group)
    )
    known = [*names, *(name for layer in layers for name in layer)]
    return "tensorflow" if not known or any(name.endswith(":0") for name in known) else "theano"


def _check_backend(backend: str | None, model_config: Any, path: str) -> None:
    """Refuse slots of kernels that Keras flips when it loads them on another backend.

    Theano convolves and TensorFlow and CNTK correlate (`keras/engine/saving.py::_need_convert_kernel` 2.2.4), so files
    of Theano have flipped kernels. Keras flips those of the model when it loads them, but not the slots.
    """
    classes = sorted({name for name in class_names(model_config) if re.search(r"Conv|Deconv", name)})
    if backend == "theano" and classes:
        raise UnsupportedError(
            f"{path} was written with the Theano backend, which keeps convolution kernels flipped, and the model has"
            f" {', '.join(classes)}: this dtopt does not turn them. Load it in Keras with the Theano backend, flip the"
            " kernels and their slots along their spatial dims, and migrate get_weights() as a list"
        )
    if backend == "theano" and model_config is None:
        raise UnsupportedError(
            f"{path} was written with the Theano backend and holds no model_config, so convolution kernels, which"
            " Theano stores flipped, cannot be recognised"
        )


def _told_by_metrics(version: str | None, training: Any) -> str | None:
    """TF 2.3 and 2.4 both have Keras 2.4.0; a metric named "mae" is saved as that name by 2.3 and as an object by
    2.4."""
    if version != "2.4.0" or not isinstance(training, Mapping):
        return None
    releases = set()
    rest = [training.get("metrics"), training.get("weighted_metrics")]
    while rest:
        item = rest.pop()
        if isinstance(item, Mapping) and "class_name" in item:
            releases |= {"2.4"} if item["class_name"] == "MeanMetricWrapper" else set()
        elif isinstance(item, Mapping):
            rest.extend(item.values())
        elif isinstance(item, list):
            rest.extend(item)
        elif isinstance(item, str):
            releases.add("2.3")
    return releases.pop() if len(releases) == 1 else None


def _told_by_order(version: str | None, training: Any) -> str | None:
    """TF 2.1 and 2.2 both have Keras 2.3.0-tf; they write the arguments of `compile` in two orders."""
    if version != "2.3.0-tf" or not isinstance(training, Mapping):
        return None
    order = [key for key in training if key in ("metrics", "weighted_metrics", "sample_weight_mode", "loss_weights")]
    orders = {
        "2.1": ["metrics", "weighted_metrics", "sample_weight_mode", "loss_weights"],
        "2.2": ["metrics", "weighted_metrics", "loss_weights", "sample_weight_mode"],
    }
    return next((release for release, known in orders.items() if order == known), None)


def _bounds_by_layers(version: str | None, model: Any) -> tuple[str, str]:
    """Releases of TensorFlow after and before the writer's; empty if unknown.

    TF 1.9 to 1.12 all have Keras 2.1.6-tf. Before 1.11 the config of a Sequential is a list, and before 1.12 the
    initializer of a Dense kernel is VarianceScaling with fan_avg.
    """
    if version != "2.1.6-tf" or not isinstance(model, Mapping):
        return "", ""
    text, sequential = json.dumps(model), model.get("class_name") == "Sequential"
    if '"GlorotUniform"' in text or (sequential and isinstance(model.get("config"), Mapping)):
        return "1.10", ""
    return "", "1.11" if sequential else "1.12" if '"fan_avg"' in text else ""


def _json_attribute(file: h5py.File, name: str, path: str) -> Any:
    stored = hdf5.text_attribute(file, name)
    if stored is None:
        return None
    try:
        return json_text.parsed(stored)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path}: its attribute {name} is not JSON ({error}); the file is damaged") from error


def _optimizer_config(training: Any) -> dict[str, Any] | None:
    document = training.get("optimizer_config") if isinstance(training, Mapping) else None
    if not isinstance(document, Mapping) or not isinstance(document.get("config"), Mapping):
        return None
    return {**document, "class_name": str(document.get("class_name", "")), "config": dict(document["config"])}


Weights = tuple[tuple[str, LazyArray], ...]


def _optimizer_weights(file: h5py.File, path: str) -> Weights | None:
    """The flat list in the order of the attribute; HDF5 itself lists Variable_10 before Variable_2."""
    if "optimizer_weights" not in file:
        return None
    group = hdf5.member(file, "optimizer_weights", path)
    names = hdf5.name_list(group, "weight_names")
    if names is None:
        raise DamagedFileError(f"{path}: its group optimizer_weights lists no weight_names; the file is damaged")
    if len(set(names)) != len(names):
        raise DamagedFileError(f"{path}: its group optimizer_weights lists a weight twice; the file is damaged")
    _check_listed(group, names, path)
    return tuple(zip(names, hdf5.lazy_datasets(group, names, path), strict=True))


def _wrapper_and_inner(weights: Weights) -> tuple[Weights, Weights]:
    counters = [i for i, (name, _) in enumerate(weights) if name.rpartition("/")[2] == "iteration"]
    start = counters[-1] if counters else 0
    return weights[:start], weights[start:]


def _check_listed(group: h5py.Group, names: Collection[str], path: str) -> None:
    """Refuse arrays that no list names. Keras lists all that it writes, so entries of a list were lost."""
    listed = {"/".join(part for part in name.split("/") if part not in ("", ".")) for name in names}
    lost = sorted(set(hdf5.dataset_names(group)) - listed)
    if lost:
        raise DamagedFileError(
            f"{path}: its group {group.name.strip('/')} holds {some([repr(name) for name in lost], 2)}, which its lists"
            " of names do not name; the file is damaged"
        )


Groups = dict[str, tuple[tuple[str, str], ...]]
OF_MODEL = "top_level_model_weights"
"""The group of weights that belong to the model and to no layer."""


def _group(file: h5py.File, path: str) -> h5py.Group:
    """The weights by layers, which are the whole file of save_weights."""
    return hdf5.member(file, WEIGHTS, path) if WEIGHTS in file else file


def _variables(
    file: h5py.File, path: str, model: Any, generation: str | None, version: str | None
) -> tuple[tuple[StoredVariable, ...], Groups]:
    """Return the model variables, including frozen ones, in this release's order for optimizers; and those of each
    layer, in the file's order."""
    layers = top_layers(model)
    group = _group(file, path)
    order = hdf5.name_list(group, "layer_names")
    if order is None:
        raise DamagedFileError(f"{path}: its group model_weights lists no layer_names; the file is damaged")
    if OF_MODEL in group and OF_MODEL not in order:
        order = [OF_MODEL, *order]
    check_inputs(model, path)
    if early.begins_with_merge(
        _json_attribute(file, "model_config", path)
    ):  # the layers of its branches are listed one by one, and trained by depth
        order = sorted(order, key=lambda name: [*layers, name].index(name))
    _check_layers(order, list(layers), path)
    listed: list[Row] = []
    trained: list[Row] = []
    for layer in order:
        node = hdf5.member(group, layer, path)
        names = hdf5.name_list(node, "weight_names") or []
        if names and layers and layer not in (*layers, OF_MODEL):
            raise DamagedFileError(
                f"{path}: it has weights of a layer {layer!r}, and its model has no layer of that name, but"
                f" {some(list(layers), 4)}: one of the two is from another file. Copy it again"
            )
        _check_order(layers.get(layer), names, path)
        flags = trainable_flags(layers.get(layer), names, not traits(generation).has_keras3_layers)
        arrays = hdf5.lazy_datasets(node, names, path)
        layer_rows = [(layer, *row) for row in zip(names, arrays, flags, strict=True)]
        listed += layer_rows
        # Saving puts a layer's frozen weights after its others, whatever their place in the layer.
        trained += [layer_rows[i] for i in trained_order(layers.get(layer), names)]
    _check_groups([(layer, name) for layer, name, _, _ in listed], path)
    _check_listed(group, [f"{layer}/{name}" for layer, name, _, _ in listed], path)
    rows, twins = _shared_once(trained)
    if sorts_by_name(generation, version):
        rows.sort(key=lambda row: row[1])
    shown = unique_names([(layer, name) for layer, name, _, _ in rows])
    variables = tuple(
        StoredVariable(variable, array, array.shape, array.dtype, _flag_of_floats(flag, array))
        for variable, (_, _, array, flag) in zip(shown, rows, strict=True)
    )
    of_array = {id(row[2]): variable for variable, row in zip(shown, rows, strict=True)}
    members: dict[str, list[tuple[str, str]]] = {layer: [] for layer in order}
    for layer, name, array, _ in listed:
        members[layer].append((name, of_array[twins.get(id(array), id(array))]))
    return variables, {layer: tuple(pairs) for layer, pairs in members.items()}


def _check_layers(order: Sequence[str], config: Sequence[str], path: str) -> None:
    """Refuse layers whose weights are listed in another order than in the model: Keras reads them by place."""
    listed, had = [name for name in order if name in config], [name for name in config if name in order]
    wrong = next((pair for pair in zip(listed, had, strict=False) if pair[0] != pair[1]), None)
    if wrong is not None:
        raise DamagedFileError(
            f"{path}: it lists the weights of the layer {wrong[0]!r} where its model has {wrong[1]!r}, and Keras reads"
            " them in the model's order; one of the two was altered; copy the file again"
        )


def _check_groups(weights: Sequence[tuple[str, str]], path: str) -> None:
    """Refuse two layers with each other's weights, judged by the names."""
    scopes: dict[str, set[str]] = {}
    for layer, name in weights:
        scopes.setdefault(layer, set()).add(name.partition("/")[0] if "/" in name else layer)
    for layer, scope in scopes.items():
        other = next(iter(scope)) if len(scope) == 1 else layer
        if other != layer and scopes.get(other) == {layer}:
            raise DamagedFileError(
                f"{path}: the layer {layer!r} has weights named like those of {other!r}, and the other way"
                " round; copy the file again"
            )


def _check_order(layer: Mapping[str, Any] | None, names: Sequence[str], path: str) -> None:
    """Refuse a list in another order than its layer's: Keras reads weights by place."""
    wrong = misplaced(layer, names)
    if wrong is not None:
        raise DamagedFileError(
            f"{path}: it lists {wrong[0]!r} before {wrong[1]!r}, and no release does: Keras reads weights by"
            " place; copy the file again"
        )


Row = tuple[str, str, LazyArray, bool | None]


def _flag_of_floats(flag: bool | None, array: LazyArray) -> bool | None:
    return flag if array.dtype.startswith(("float", "bfloat", "complex")) else False


def sorts_by_name(generation: str | None, version: str | None) -> bool:
    """Whether this release ordered slots by variable names (Keras 1.0.6 - 2.0.5, and that of TF 1.2)."""
    return OWNERS.of(candidates(generation or "", Versions(version or ""))) == SORTED


def _shared_once(rows: Sequence[Row]) -> tuple[list[Row], dict[int, int]]:
    """Drop the second copy of a weight of a layer in two groups: the same name and the same bits.

    Returns:
      The remaining rows, and for each dropped array its id with the id of its copy.
    """
    kept: dict[str, list[LazyArray]] = {}
    result = []
    dropped = {}
    for row in rows:
        seen = kept.setdefault(row[1], [])
        twin = next((array for array in seen if _equal(row[2], array)), None)
        if twin is not None:
            dropped[id(row[2])] = id(twin)
            continue
        seen.append(row[2])
        result.append(row)
    return result, dropped


def _equal(a: LazyArray, b: LazyArray) -> bool:
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and np.array_equal(a.load(), b.load(), equal_nan=a.dtype.startswith("float"))
    )


def unique_names(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Variable names without `:0`, prefixed with the layer's name if two layers use the same one."""
    plain = [name.removesuffix(":0") for _, name in pairs]
    times = Counter(plain)
    return [f"{layer}/{name}" if times[name] > 1 else name for (layer, _), name in zip(pairs, plain, strict=True)]
