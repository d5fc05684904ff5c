"""What the writers of Keras's files share: HDF5 tensor by tensor, and what a report says of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import h5py
import numpy as np

from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import some
from migrate.evidence import doubts
from migrate.models.plan import ModelPlan
from migrate.state import OptimizerState
from migrate.writers.hdf5_file import Sink, created
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
    """An HDF5 file with these tensors by path, one at a time, and with these groups even if they are empty; or the rest
    of another file, from `start` on."""
    with created(path, start) as (file, sink):
        for group in groups:
            file.require_group(group)
        write_into(file, tensors, progress, sink)


def write_into(file: h5py.File, tensors: Mapping[str, LazyArray], progress: Progress | None, sink: Sink) -> None:
    total, done = sum(map(_size, tensors.values())), 0
    for name, array in tensors.items():
        value = np.asarray(array.load())
        if value.shape != array.shape:
            raise CheckpointError(
                f"{array.stored_as} has shape {list(value.shape)}, its file's table says {list(array.shape)}"
            )
        file.create_dataset(name, data=value)
        sink.check()
        del value  # before the next one is loaded, so that two are never held
        done += _size(array)
        if progress is not None:
            progress(done, total)


def _size(array: LazyArray) -> int:
    return array.size * np.dtype(array.dtype).itemsize


def told(state: OptimizerState, plan: ModelPlan, reasons: Sequence[str], notes: Sequence[str]) -> OptimizerState:
    """A state for a report: what the plan and the translation of the model change is among its reasons and warnings."""
    left = [name for name in state.unmapped if plan.scale is None or not name.startswith("optimizer/vars/")]
    if left:
        notes = (*notes, f"a model of Keras has no place for what no optimizer reads; left out: {some(left)}")
    return replace(
        plan.live.state,
        origins=(*plan.live.state.origins, *doubts("model", reasons)),
        unmapped={},
        warnings=(*state.warnings, *plan.notes, *notes),
    )
