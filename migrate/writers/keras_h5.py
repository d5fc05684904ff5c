"""Write an `.h5` file that tf_keras loads, docs/formats/keras-h5.md, completely or not at all.

The layout is `model.save("x.h5")`'s of tf_keras 2.16 to 2.21. Source: `saving/legacy/hdf5_format.py` there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from migrate import claims
from migrate.bytes import atomic
from migrate.bytes.arrays import LazyArray
from migrate.models import to_tf_keras, training
from migrate.models.normalized_config import leaves
from migrate.models.plan import ModelPlan, model_plan, stored_model
from migrate.models.to_keras3 import with_input
from migrate.models.weights import legacy_order
from migrate.readers import keras_h5 as reader
from migrate.releases.modules import TF_KERAS, TF_KERAS_LEGACY
from migrate.state import OptimizerState
from migrate.writers import files, hdf5_file, single_file

SUFFIXES = (".h5", ".hdf5")
KERAS_VERSION = "2.15.0"
"""A value that tf_keras 2.15 and later accept; it selects the conversion of weights on load; this one converts
nothing."""
RELEASE = {"keras_version": KERAS_VERSION, "backend": "tensorflow"}
NAMES_IN_ONE = 64_000
"""Most bytes of one HDF5 attribute."""
LEGACY_SLOTS = {
    "SGD": {"m": "momentum"},
    "RMSprop": {"velocity": "rms", "average_gradient": "mg"},
    "Adadelta": {"accumulated_grad": "accum_grad", "accumulated_delta_var": "accum_var"},
    "Adamax": {"u": "v"},
}
SCALARS = {
    TF_KERAS_LEGACY: {"iterations": "iter", "u_product": "momentum_cache"},
    TF_KERAS: {"iterations": "iteration"},
}


@dataclass(frozen=True)
class _Row:
    """A weight of a top-level layer: `name` is its dataset under `model_weights/<layer>`, `variable` the source's."""

    layer: str
    name: str
    variable: str


def check_target(dest: str, *, overwrite: bool) -> None:
    """Raise HyperparameterError for another suffix, TargetExistsError if `dest` may not be replaced."""
    single_file.check_target(dest, SUFFIXES, reader.sniff, "is not a model of Keras in HDF5", overwrite=overwrite)


def plan_for(state: OptimizerState) -> ModelPlan:
    """Plan with the class of the source's rules first, then the most exact one. With a scaled loss it is the legacy
    one: tf_keras's LossScaleOptimizerV3 cannot load what it saves into HDF5.

    Raises as `plan.model_plan`, and UnsupportedError for a Sequential that tf_keras would load without weights: Keras
    before 2.3 left an InputLayer out of the config.
    """
    families = (TF_KERAS, TF_KERAS_LEGACY) if state.source_traits.prefers_new_classes else (TF_KERAS_LEGACY, TF_KERAS)
    plan = model_plan(state, families, scaled=(TF_KERAS_LEGACY,))
    model = stored_model(state).config if plan.document is None else plan.document
    if model.get("class_name") == "Sequential":
        with_input(model["config"])
    return plan


def converted(state: OptimizerState) -> tuple[OptimizerState, ModelPlan]:
    """Return the state in tf_keras's form, with the changes among its reasons and warnings; and the plan."""
    plan = plan_for(state)
    otherwise = training.differences(plan.document, state.source, "tf-keras")
    notes = training.remarks(plan.document, state.source, "tf-keras")
    custom_classes = to_tf_keras.own_classes(plan.document or stored_model(state).config)
    return files.with_changes(state, plan, [*custom_classes, *otherwise], notes), plan


def write(
    state: OptimizerState,
    dest: str,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write model and optimizer, completely or not at all; memory is bounded by the largest tensor.

    Args:
      progress: called with (bytes done, bytes in all).

    Raises:
      Errors of `check_target` and `plan.model_plan`; CheckpointError: the system refused to write.
    """
    check_target(dest, overwrite=overwrite)
    in_target, plan = converted(state)
    named = list(_optimizer_names(plan))
    tensors = {place: plan.array(name) for place, name in locations(plan).items()}
    tensors |= {f"optimizer_weights/{name}": array for name, array in named}
    with atomic.scratch_folder(dest) as scratch:
        path = os.path.join(scratch, "model.h5")
        with hdf5_file.created(path) as (file, sink):
            _write_attributes(file, plan)
            if doubts := claims.to_remember(in_target.origins):
                file.attrs[claims.REMEMBERED] = json.dumps(doubts)
            files.write_into(file, tensors, progress, sink)
        single_file.place(path, dest, overwrite=overwrite)


def described(state: OptimizerState) -> dict[str, Any]:
    """A target's documents of model, loss and optimizer, its release, and the order of its weights."""
    plan = plan_for(state)
    return {**_documents(plan), **RELEASE, "names": _names_by_group(plan)}


def _documents(plan: ModelPlan) -> dict[str, Any]:
    config = (
        stored_model(plan.live.state).config
        if plan.document is None
        else _without_argument(plan.document, "input_dtype")
    )
    training = {key: plan.compiled[key] for key in ("loss", "metrics", "weighted_metrics", "loss_weights")}
    return {"model_config": config, "training_config": {**training, "optimizer_config": _optimizer(plan)}}


def locations(plan: ModelPlan) -> dict[str, str]:
    """Dataset -> name of its variable in the source."""
    return {f"model_weights/{row.layer}/{row.name}": row.variable for row in _rows(plan)}


def _group_names(plan: ModelPlan) -> list[str]:
    if plan.document is None:
        return list(_own_groups(plan))
    return list(dict.fromkeys(_name(layer) for layer in plan.document["config"]["layers"]))


def _own_groups(plan: ModelPlan) -> Mapping[str, tuple[tuple[str, str], ...]]:
    groups = stored_model(plan.live.state).groups
    assert groups is not None
    return groups


def _rows(plan: ModelPlan) -> Iterator[_Row]:
    if plan.document is None:
        for layer, members in _own_groups(plan).items():
            yield from (_Row(layer, name, variable) for name, variable in members)
        return
    every = list(leaves(plan.document))
    for layer in plan.document["config"]["layers"]:
        top = _name(layer)
        inside = legacy_order([leaf for leaf in every if leaf.path[0] == top])
        short = [f"{path[-1]}/{_weight_name(role)}" for path, role in inside]
        for (path, role), brief in zip(inside, short, strict=True):
            name = brief if short.count(brief) == 1 else f"{'/'.join(path)}/{_weight_name(role)}"
            yield _Row(top, name, plan.places[path, role])


def _weight_name(role: str) -> str:
    part, _, tail = role.rpartition("/")
    return f"{part}_layer/{tail}:0" if part in ("forward", "backward") else f"{role}:0"


def _name(layer: Mapping[str, Any]) -> str:
    return str(layer.get("name") or layer["config"].get("name"))


def _write_attributes(file: h5py.File, plan: ModelPlan) -> None:
    for name, document in _documents(plan).items():
        file.attrs[name] = json.dumps(document)
    for group in (file, file.create_group("model_weights")):
        group.attrs.update(RELEASE)
    for place, names in _names_by_group(plan).items():
        attribute = "layer_names" if place == "model_weights" else "weight_names"
        _list_names(file.require_group(place), attribute, names)


def _names_by_group(plan: ModelPlan) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {name: [] for name in _group_names(plan)}
    for row in _rows(plan):
        groups[row.layer].append(row.name)
    lists = {"model_weights": list(groups), **{f"model_weights/{layer}": names for layer, names in groups.items()}}
    return {**lists, "optimizer_weights": [name for name, _ in _optimizer_names(plan)]}


def _without_argument(item: Any, key: str) -> Any:
    if isinstance(item, list):
        return [_without_argument(x, key) for x in item]
    return {k: _without_argument(v, key) for k, v in item.items() if k != key} if isinstance(item, Mapping) else item


def _list_names(group: h5py.Group, attribute: str, names: Sequence[str]) -> None:
    """Write a list of names, in parts if it does not fit into one attribute."""
    encoded = [name.encode() for name in names]
    width = max(map(len, encoded), default=1)
    per_part = max(1, NAMES_IN_ONE // max(1, width))
    if len(encoded) <= per_part:
        group.attrs[attribute] = np.array(encoded, dtype=f"S{max(1, width)}")
        return
    for i in range(0, len(encoded), per_part):
        group.attrs[f"{attribute}{i // per_part}"] = np.array(encoded[i : i + per_part], dtype=f"S{width}")


def _optimizer(plan: ModelPlan) -> dict[str, Any]:
    live, new = plan.live, plan.live.family == TF_KERAS
    config = {"name": live.class_name, **live.config}
    if new:
        config |= {"jit_compile": False, "is_legacy_optimizer": False}
    document = {"class_name": f"Custom>{live.class_name}" if new else live.class_name, "config": config}
    if plan.scale is None:
        return document
    growth = plan.scale.growth
    settings = {"dynamic": growth is not None, "initial_scale": plan.scale.current, "dynamic_growth_steps": growth}
    return {"class_name": "LossScaleOptimizer", "config": {"inner_optimizer": document, **settings}}


def _optimizer_names(plan: ModelPlan) -> Iterator[tuple[str, LazyArray]]:
    """The optimizer's list with tf_keras's own names."""
    rows = list(_rows(plan))
    shown = reader.unique_names([(row.layer, row.name) for row in rows])
    names = {row.variable: name for row, name in zip(rows, shown, strict=True)}
    live = plan.live
    renamed = LEGACY_SLOTS.get(live.class_name, {})
    assert live.family in (TF_KERAS, TF_KERAS_LEGACY)
    for slot, variable, array in plan.flat:
        if variable is None:
            scalar = SCALARS[live.family][slot]
            yield (f"{scalar}:0" if live.family == TF_KERAS else f"{live.class_name}/{scalar}:0"), array
        elif live.family == TF_KERAS:
            yield f"{live.class_name}/{slot}/{names[variable]}:0", array
        else:
            yield f"{live.class_name}/{names[variable]}/{renamed.get(slot, slot)}:0", array
