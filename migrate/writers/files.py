"""Shared parts of the writers of Keras's files: HDF5 tensor by tensor, and reports on a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import h5py
import numpy as np

from migrate.bytes.arrays import LazyArray, loaded_dtype
from migrate.bytes.messages import some
from migrate.claims import doubts
from migrate.models import rounding
from migrate.models.compiled import without_loss
from migrate.models.plan import ModelPlan, stored_model
from migrate.releases.modules import GENERATION, KERAS_3
from migrate.state import OptimizerState
from migrate.writers.hdf5_file import Sink, created
from optim.bytes.bundle import numpy_dtype
from optim.bytes.ranges import CHUNK
from optim.errors import CheckpointError

Progress = Callable[[int, int], None]


def constant(array: np.ndarray) -> LazyArray:
    return LazyArray(array.shape, array.dtype.name, lambda: array, "")


def write_datasets(
    path: str,
    tensors: Mapping[str, LazyArray],
    progress: Progress | None,
    *,
    groups: Iterable[str] = (),
    start: int = 0,
) -> None:
    """Write an HDF5 file with these tensors by path, one at a time, and with these groups even if they are empty;
    inside another file from `start` on."""
    with created(path, start) as (file, sink):
        for group in groups:
            file.require_group(group)
        write_into(file, tensors, progress, sink)


def write_into(file: h5py.File, tensors: Mapping[str, LazyArray], progress: Progress | None, sink: Sink) -> None:
    """Write each tensor through one small buffer if its bytes are contiguous in the source, else as a whole."""
    total, done = sum(map(_size, tensors.values())), 0
    buffer = np.empty(CHUNK, np.uint8)
    for name, array in tensors.items():
        if array.extent is not None and array.size:
            sink.seek(_reserve(file, name, array))
            for chunk in array.extent.chunks(buffer):
                sink.write(chunk)
        else:
            _write_loaded(file, name, array)
        sink.check()
        done += _size(array)
        if progress is not None:
            progress(done, total)


def _reserve(file: h5py.File, name: str, array: LazyArray) -> int:
    properties, linked = h5py.h5p.create(h5py.h5p.DATASET_CREATE), h5py.h5p.create(h5py.h5p.LINK_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    linked.set_create_intermediate_group(True)
    kind = h5py.h5t.py_create(_stored(array.dtype), logical=True)
    space = h5py.h5s.create_simple(array.shape) if array.shape else h5py.h5s.create(h5py.h5s.SCALAR)
    dataset = h5py.Dataset(h5py.h5d.create(file.id, name.encode(), kind, space, properties, linked))
    _mark(dataset, array.dtype)
    return int(dataset.id.get_offset())


def _stored(dtype: str) -> np.dtype:
    """The dtype that Keras 3 stores: bfloat16 as two opaque bytes, with `_mark` next to them."""
    return np.dtype("V2") if dtype == "bfloat16" else numpy_dtype(dtype)


def _mark(dataset: h5py.Dataset, dtype: str) -> None:
    if dtype == "bfloat16":
        dataset.attrs["dtype"] = dtype


def _write_loaded(file: h5py.File, name: str, array: LazyArray) -> None:
    value = np.asarray(array.load())
    if value.shape != array.shape:
        raise CheckpointError(
            f"{array.stored_as} has shape {list(value.shape)}, its file's table has {list(array.shape)}"
        )
    _mark(file.create_dataset(name, data=value.view("V2") if array.dtype == "bfloat16" else value), array.dtype)


def _size(array: LazyArray) -> int:
    return array.size * loaded_dtype(array.dtype).itemsize


def with_changes(
    state: OptimizerState, plan: ModelPlan, reasons: Sequence[str], notes: Sequence[str]
) -> OptimizerState:
    """Add what the plan and the model's translation change to the state's reasons and warnings."""
    rounded = rounding.difference(plan.live.state, GENERATION[plan.live.family])
    scaled = plan.scale.differences(plan.live.family == KERAS_3) if plan.scale is not None else []
    reasons = [*reasons, *without_loss(stored_model(state).training, plan.compiled), *scaled, *filter(None, [rounded])]
    written = {f"{slot}/{owner}" for slot, owner, _ in plan.flat}
    left = [name for name in state.unmapped if plan.scale is None or not name.startswith("optimizer/vars/")]
    left = [name for name in left if name not in written]
    if left:
        notes = (*notes, f"a model of Keras has no place for what no optimizer reads; left out: {some(left)}")
    return replace(
        plan.live.state,
        origins=(*plan.live.state.origins, *doubts("model", reasons)),
        unmapped={},
        warnings=(*state.warnings, *plan.notes, *notes),
    )
