"""Writes a `get_weights()` list as `.npz` with members arr_0, arr_1, ..., as `numpy.savez(path, *list)` does."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable

import numpy as np

from migrate import atomic
from migrate.errors import TargetExistsError
from migrate.list_plan import plan
from migrate.readers import weight_list
from migrate.state import OptimizerState
from optim.errors import DtoptError, HyperparameterError

SUFFIX = ".npz"


def check_target(dest: str, *, overwrite: bool) -> None:
    """Raises HyperparameterError for another suffix, TargetExistsError where `dest` may not be replaced."""
    if not dest.endswith(SUFFIX):
        raise HyperparameterError(f"{dest}: a list is written as {SUFFIX}; give a name that ends so")
    if not os.path.lexists(dest):
        return
    if not overwrite:
        raise TargetExistsError(f"{dest} exists; give another name, or --overwrite to replace it")
    try:
        known = weight_list.sniff(dest)
    except DtoptError as error:
        raise TargetExistsError(f"{dest} is not replaced: {error}") from error
    if not known:
        raise TargetExistsError(f"{dest} is no get_weights() list, so it is not replaced; give another name")


def write(
    state: OptimizerState,
    dest: str,
    *,
    order: str | None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write the list, whole or not at all; memory is bounded by the largest array.

    Args:
      order: see `list_plan.plan`.
      progress: called with (bytes done, bytes in all).

    Raises:
      Errors of `check_target` and `list_plan.plan`; CheckpointError: the system refused to write.
    """
    check_target(dest, overwrite=overwrite)
    arrays = plan(state, order).arrays
    sizes = [a.size * np.dtype(a.dtype).itemsize for a in arrays]
    with atomic.scratch_folder(dest) as scratch:
        path = os.path.join(scratch, "list.npz")
        with open(path, "xb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                for index, array in enumerate(arrays):
                    with archive.open(f"arr_{index}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, np.asarray(array.load()), allow_pickle=False)
                    if progress is not None:
                        progress(sum(sizes[: index + 1]), sum(sizes))
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(path, dest)
        else:
            _place(path, dest)
        atomic.sync_folder(os.path.dirname(os.path.abspath(dest)))


def _place(path: str, dest: str) -> None:
    try:
        os.link(path, dest)  # unlike a rename, never over a file that came meanwhile
    except FileExistsError as error:
        raise TargetExistsError(f"{dest} was created by somebody else meanwhile; it was left as it is") from error
