"""Write a `.keras` file that Keras 3 loads, docs/formats/keras-zip.md, completely or not at all."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from functools import partial
from io import BufferedRandom, FileIO
from typing import IO, Any

import numpy as np

from migrate import algorithms, claims
from migrate.algorithms.clipping import LIMITS
from migrate.bytes import atomic
from migrate.bytes.arrays import LazyArray
from migrate.models import operators, to_tf_keras, training
from migrate.models.compiled import for_keras3, for_outputs
from migrate.models.from_keras3 import ONLY_3, newer
from migrate.models.layers import KINDS
from migrate.models.normalized_config import leaves, output_names
from migrate.models.places import places
from migrate.models.plan import ModelPlan, model_plan, stored_model
from migrate.models.to_keras3 import Translation, to_keras3
from migrate.readers import keras_zip as reader
from migrate.releases.modules import KERAS_3, MODULE
from migrate.releases.versions import version_tuple
from migrate.state import OptimizerState, StoredModel
from migrate.writers import files, single_file
from optim.bytes.checks import Check
from optim.bytes.ranges import CHUNK

SUFFIX = ".keras"
KERAS_VERSION = "3.10.0"
"""The first release whose optimizers list their variables in this order."""
NEVER = 2**31 - 1
"""Steps after which a constant loss scale grows."""
OPTIMIZER = "optimizer/vars"
INNER = "optimizer/inner_optimizer/vars"


def check_target(dest: str, *, overwrite: bool) -> None:
    """Raise HyperparameterError for another suffix, TargetExistsError if `dest` may not be replaced."""
    single_file.check_target(dest, SUFFIX, reader.sniff, "is not a model of Keras", overwrite=overwrite)


def converted(state: OptimizerState) -> tuple[OptimizerState, ModelPlan]:
    """Return the state in Keras 3's form, with the changes among its reasons and warnings; and the plan.

    Raises as `plan.model_plan`.
    """
    plan, translation = model_plan(state, (KERAS_3,)), Translation()
    _config(plan, translation)
    config = stored_model(state).config
    custom_classes = to_tf_keras.own_classes(config, ONLY_3) if plan.document is None else []
    otherwise = training.differences(plan.document, state.source, "keras")
    notes = [*translation.notes, *training.remarks(plan.document, state.source, "keras")]
    if plan.scale is not None and plan.scale.growth is None:
        notes.append(
            "the loss scale is constant in the source; that of Keras 3 is halved when gradients are not finite"
        )
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
    target, plan = converted(state)
    translation = Translation()
    config = _config(plan, translation)
    metadata: dict[str, Any] = {
        **_release(state, translation),
        "date_saved": datetime.now(timezone.utc).strftime("%Y-%m-%d@%H:%M:%S"),
    }
    if doubts := claims.to_remember(target.origins):
        metadata[claims.REMEMBERED] = doubts
    tensors = {place: plan.array(name) for place, name in locations(plan).items()}
    tensors |= dict(_optimizer_tensors(plan))
    with atomic.scratch_folder(dest) as scratch:
        path = os.path.join(scratch, "model.keras")
        with _Counted(FileIO(path, "x+b")) as file, zipfile.ZipFile(file, "w") as archive:
            archive.writestr(reader.METADATA, json.dumps(metadata))
            archive.writestr(reader.CONFIG, json.dumps(config))
            with archive.open(reader.WEIGHTS, "w", force_zip64=True) as member:
                file.flush()
                start = file.tell()
                files.write_datasets(path, tensors, progress, groups=["vars", *_groups(plan), OPTIMIZER], start=start)
                _count_in(file, start, member)
            if plan.document is None:
                _copy_assets(stored_model(state), archive)
        single_file.place(path, dest, overwrite=overwrite)


def described(state: OptimizerState) -> dict[str, Any]:
    """A target's documents of model, loss and optimizer, and its release."""
    translation = Translation()
    return {**_config(model_plan(state, (KERAS_3,)), translation), **_release(state, translation)}


def _release(state: OptimizerState, translation: Translation) -> dict[str, str]:
    needed = (KERAS_VERSION, algorithms.find(state.algorithm).keras3_since, translation.since)
    return {"keras_version": max(needed, key=lambda version: version_tuple(version) or ())}


class _Counted(BufferedRandom):
    """A file whose next bytes may already be there when they are written."""

    there = False

    def write(self, data: Any) -> int:
        """Skip bytes that are already there."""
        if not self.there:
            return super().write(data)
        self.seek(len(data), os.SEEK_CUR)
        return len(data)


def _count_in(file: _Counted, start: int, member: IO[bytes]) -> None:
    """Let zip compute the checksum of bytes that are already there, while the disk stores them."""
    buffer, synced = memoryview(bytearray(CHUNK)), Check(partial(os.fsync, file.fileno()))
    synced.start()
    file.there = True
    with open(file.name, "rb", buffering=0) as written:
        written.seek(start)
        while count := written.readinto(buffer):
            member.write(buffer[:count])
    file.there = False
    synced.finish()


def _copy_assets(model: StoredModel, archive: zipfile.ZipFile) -> None:
    for name, chunks in model.assets.items():
        with archive.open(name, "w", force_zip64=True) as member:
            member.writelines(chunks())


def _config(plan: ModelPlan, translation: Translation) -> dict[str, Any]:
    if plan.document is None:
        model = stored_model(plan.live.state)
        arguments = {**(model.training or {}), **_losses(model)}
        return {**newer(model.config), "compile_config": {**arguments, "optimizer": _optimizer(plan)}}
    config = to_keras3(plan.document, translation)
    outputs = list(dict.fromkeys(translation.names.get(name, name) for name in output_names(plan.document)))
    return {**config, "compile_config": {"optimizer": _optimizer(plan), **for_keras3(plan.compiled, outputs)}}


def _losses(model: StoredModel) -> dict[str, Any]:
    """Losses of a model of Keras 3: releases up to 3.4 accepted some outputs only, later ones require all."""
    config = model.config.get("config")
    outputs = config.get("output_layers") if isinstance(config, Mapping) else None
    if not model.training or not isinstance(outputs, list):
        return {}
    return for_outputs(model.training, [str(end[0]) for end in operators.ends(outputs)])


def _optimizer(plan: ModelPlan) -> dict[str, Any]:
    live = plan.live
    config = {"name": live.class_name.lower(), **dict.fromkeys(LIMITS), **live.config}
    rate = config["learning_rate"]
    if isinstance(rate, Mapping):
        settings = {key: value for key, value in rate["config"].items() if (key, value) != ("name", None)}
        schedule = {"module": "keras.optimizers.schedules", "registered_name": None, **rate}
        config["learning_rate"] = {**schedule, "config": settings}
    document = {"module": MODULE[KERAS_3], "class_name": live.class_name, "config": config, "registered_name": None}
    if plan.scale is None:
        return document
    wrapper_config = {"name": "loss_scale_optimizer", "inner_optimizer": document, "initial_scale": plan.scale.initial}
    wrapper_config["dynamic_growth_steps"] = NEVER if plan.scale.growth is None else plan.scale.growth
    return {**document, "class_name": "LossScaleOptimizer", "config": wrapper_config}


def _groups(plan: ModelPlan) -> Iterator[str]:
    """Every layer has a group `vars`, even if it is empty."""
    if plan.document is None:
        return
    yield from (f"{group}/vars" for _, group, _ in places(plan.document))


def locations(plan: ModelPlan) -> dict[str, str]:
    """Place in model.weights.h5 -> name of its variable in the source."""
    if plan.document is None:
        return {v.array.stored_as.strip("/"): v.name for v in plan.live.state.variables if v.array is not None}
    groups = {path: group for path, group, _ in places(plan.document)}
    return {
        f"{groups[leaf.path]}/{weight.place}": plan.places[leaf.path, weight.role]
        for leaf in leaves(plan.document)
        for weight in KINDS[leaf.class_name].weights(leaf.config)
    }


def _optimizer_tensors(plan: ModelPlan) -> Iterator[tuple[str, LazyArray]]:
    scale_variables, flat = _scale_variables(plan), [array for _, _, array in plan.flat]
    for i, array in enumerate((*scale_variables, *flat)):
        yield f"{OPTIMIZER}/{i}", array
    if scale_variables:
        yield from ((f"{INNER}/{i}", array) for i, array in enumerate(flat))


def _scale_variables(plan: ModelPlan) -> tuple[LazyArray, ...]:
    """The wrapper's own: an unused counter and learning rate, steps since its last change, the scale."""
    if plan.scale is None:
        return ()
    values = (np.int64(0), np.float32(0), np.int64(plan.scale.since), np.float32(plan.scale.current))
    return tuple(files.constant(np.asarray(value)) for value in values)
