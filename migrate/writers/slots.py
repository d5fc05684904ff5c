"""Write the slot-variable layout, docs/formats/slot-variables.md, completely or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from migrate.bytes import atomic
from migrate.bytes.arrays import LazyArray
from migrate.bytes.source import check_unchanged
from migrate.errors import TargetExistsError
from migrate.models import constraints, loss_scale
from migrate.state import OptimizerState
from optim import release, slot_layout
from optim.bytes import files, object_tree, system, urls
from optim.bytes.bundle import GRAPH_KEY, STRING, numpy_dtype, shard_name
from optim.bytes.bundle_writer import BundleWriter, Room
from optim.bytes.ranges import CHUNK
from optim.errors import CheckpointError

Progress = Callable[[int, int], None]


def write(
    state: OptimizerState,
    dest: str,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    complete: Callable[[OptimizerState], OptimizerState] = lambda state: state,
) -> None:
    """Write `state` as a slot-variable checkpoint.

    Memory is bounded by the largest tensor. Until the last rename `dest` is unchanged, whatever happens; scratch files
    are next to it.

    Args:
      dest: the folder to create; with `overwrite` it may be a slot-variable checkpoint or an empty folder.
      progress: called with (bytes done, bytes in all) of the tensors, from any thread.
      complete: completes a state by its numbers. Those that it reads are written meanwhile, and its errors leave no
        target.

    Raises:
      TargetExistsError: `dest` exists and is not to be, or may not be, replaced. Nothing was read yet.
      CheckpointError: this layout cannot express the state, or the system refused to write.
    """
    dest = os.path.realpath(dest)
    replaces = check_target(dest, overwrite=overwrite)
    _metadata_json(state)  # refuse an invalid state before anything is written
    tensors = _tensors(state)
    with atomic.scratch_folder(dest) as scratch:
        name = slot_layout.STATE_PREFIX + secrets.token_hex(8)
        counter = _Counter(progress, sum(map(_size, tensors.values())))
        _write_bundle(os.path.join(scratch, name), state, complete, counter)
        state.finish_checks()
        atomic.write_synced(os.path.join(scratch, slot_layout.POINTER_NAME), slot_layout.pointer_text(name))
        if replaces:
            _replace_state(scratch, dest, name)
        else:
            atomic.place_folder(scratch, dest)


def check_target(dest: str, *, overwrite: bool) -> bool:
    """Whether an existing checkpoint would be replaced. Raises TargetExistsError if that is not allowed."""
    if not files.exists(dest):
        return False
    if not overwrite:
        raise TargetExistsError(f"{dest} exists; give another name, or --overwrite to replace it")
    if not files.is_folder(dest):
        raise TargetExistsError(f"{dest} is not a folder, so it is not replaced; give another name")
    names = files.names(dest)
    if not names:
        return False
    foreign = [n for n in names if not slot_layout.is_ours(n)]
    if foreign or slot_layout.POINTER_NAME not in names:
        what = f"it holds {foreign[0]!r}" if foreign else f"it has no file {slot_layout.POINTER_NAME!r}"
        raise TargetExistsError(
            f"{dest} is not a slot-variable checkpoint ({what}), so it is not replaced; give another name"
        )
    if urls.is_url(dest):
        return True
    try:
        slot_layout.current_prefix(dest)
    except CheckpointError as error:
        raise TargetExistsError(f"{dest} is not replaced: {error}") from error
    return True


def _metadata_json(state: OptimizerState) -> bytes:
    config = {"name": state.algorithm, **state.hyperparameters}
    provenance: dict[str, object] = {
        "written_by": f"dtopt {release.version()}",
        "iterations_from": state.iterations_source,
    }
    provenance |= {"fidelity": state.fidelity, "reasons": list(state.kept_reasons)}
    if state.source is not None:
        provenance |= {
            "format": state.source.format,
            "generation": state.source.generation,
            "versions": state.source.versions.to_dict(),
        }
        trained = [v.name for v in state.variables if v.trainable]
        scaling = loss_scale.of_state(state) if "loss_scale" not in state.hyperparameters else None
        if scaling is not None:
            provenance[slot_layout.LOSS_SCALE] = [scaling.growth, scaling.now]
        if tied := constraints.of_source(state.source, trained):
            provenance[slot_layout.CONSTRAINTS] = tied
    metadata = slot_layout.Metadata(
        state.algorithm,
        config,
        tuple(
            slot_layout.VariableEntry(
                v.name, v.shape, v.dtype, bool(v.trainable), v.array is not None, _fresh(state, v.name)
            )
            for v in state.variables
        ),
        {slot: tuple(owners) for slot, owners in state.slots.items()},
        provenance,
    )
    metadata.check("the state to be written")
    try:
        return metadata.to_json().encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the optimizer's config cannot be written as JSON: {error}; config: {config}") from error


def _fresh(state: OptimizerState, name: str) -> str:
    if name in state.parts.fresh:
        return slot_layout.WHOLE
    return slot_layout.ADDED if name in state.parts.grown else ""


def _scalar(value: int | float, dtype: str) -> LazyArray:
    array = np.array(value, dtype)
    return LazyArray((), dtype, lambda: array, "")


def _tensors(state: OptimizerState) -> dict[str, LazyArray]:
    """Every tensor by its key, in the order of writing."""
    counter = slot_layout.ITERATIONS
    items = [(slot_layout.scalar_key(counter), _scalar(state.iterations, slot_layout.scalar_dtype(counter)))]
    rate = state.hyperparameters.get(slot_layout.LEARNING_RATE)
    if isinstance(rate, (int, float)) and not isinstance(rate, bool):
        items.append((slot_layout.scalar_key(slot_layout.LEARNING_RATE), _scalar(rate, "float64")))
    for name, value in state.scalars.items():
        items.append((slot_layout.scalar_key(name), _scalar(value, slot_layout.scalar_dtype(name))))
    items += [(slot_layout.variable_key(v.name), v.array) for v in state.variables if v.array is not None]
    for slot, owners in state.slots.items():
        items += [(slot_layout.slot_key(slot, name), array) for name, array in owners.items()]
    items += [(slot_layout.unmapped_key(name), array) for name, array in state.unmapped.items()]
    items.append((slot_layout.SAVE_COUNTER_KEY, _scalar(1, "int64")))
    tensors = dict(items)
    if len(tensors) != len(items):
        twice = next(key for key in tensors if sum(key == k for k, _ in items) > 1)
        raise CheckpointError(f"the state names {twice!r} twice")
    return tensors


def _write_bundle(
    prefix: str,
    state: OptimizerState,
    complete: Callable[[OptimizerState], OptimizerState],
    counter: _Counter,
) -> None:
    """Write the tensors. Each contiguous one is written when it is first read, by `complete` or else here."""
    with BundleWriter(prefix) as bundle, bundle.syncing():
        rooms: dict[str, Room] = {}

        def passing(key: str, array: LazyArray) -> LazyArray:
            if array.extent is None:
                return array
            room = rooms[key] = bundle.reserve(key, array.dtype, array.shape)
            extent = replace(array.extent, passing=lambda start, piece: counter(room.take(start, piece)))
            return replace(array, extent=extent)

        passed = _with_arrays(state, passing)
        completed, buffer = complete(passed), np.empty(CHUNK, np.uint8)
        tensors = _tensors(passed)
        for key, array in tensors.items():
            if array.extent is None:
                _add_loaded(bundle, key, array)
                counter(_size(array))
            elif rooms[key].done < rooms[key].size:
                for _ in array.extent.chunks(buffer):
                    pass
        bundle.add_string(slot_layout.METADATA_KEY, _metadata_json(completed))
        bundle.add_string(GRAPH_KEY, object_tree.serialize([*tensors, slot_layout.METADATA_KEY]))


def _with_arrays(state: OptimizerState, change: Callable[[str, LazyArray], LazyArray]) -> OptimizerState:
    variables = [
        v if v.array is None else replace(v, array=change(slot_layout.variable_key(v.name), v.array))
        for v in state.variables
    ]
    slots = {
        slot: {name: change(slot_layout.slot_key(slot, name), array) for name, array in owners.items()}
        for slot, owners in state.slots.items()
    }
    unmapped = {name: change(slot_layout.unmapped_key(name), array) for name, array in state.unmapped.items()}
    return replace(state, variables=tuple(variables), slots=slots, unmapped=unmapped)


def _size(array: LazyArray) -> int:
    return 0 if array.dtype == STRING else array.size * numpy_dtype(array.dtype).itemsize


class _Counter:
    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done, self._lock = progress, total, 0, threading.Lock()

    def __call__(self, count: int) -> None:
        if self._progress is not None and count:
            with self._lock:
                self._done += count
                self._progress(self._done, self._total)


def _add_loaded(bundle: BundleWriter, key: str, array: LazyArray) -> None:
    value = array.load()
    if value.shape != array.shape:
        raise CheckpointError(
            f"{array.stored_as} has shape {list(value.shape)}, its file's table has {list(array.shape)}"
        )
    if array.dtype == STRING:
        bundle.add_string(key, bytes(value[()]))
    else:
        bundle.add(key, value, array.dtype)


def _replace_state(scratch: str, dest: str, name: str) -> None:
    """Move a finished state, then the pointer, into a checkpoint; then remove files that are no longer named."""
    check_unchanged()
    with atomic.locked(dest):
        for path in (shard_name(name, 0, 1), name + ".index"):
            os.rename(os.path.join(scratch, path), os.path.join(dest, path))
        system.sync_folder(dest)
        pointer = slot_layout.POINTER_NAME
        os.replace(os.path.join(scratch, pointer), os.path.join(dest, pointer))
        system.sync_folder(dest)
        for other in os.listdir(dest):
            if other != pointer and slot_layout.is_ours(other) and not other.startswith(name + "."):
                _remove(os.path.join(dest, other))


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
