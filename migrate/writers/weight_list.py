"""Write a `get_weights()` list as `.npz` with members arr_0, arr_1, ..., like `numpy.savez(path, *list)`."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable

import numpy as np

from migrate.bytes import atomic
from migrate.lists.planning import plan
from migrate.readers import weight_list
from migrate.state import OptimizerState
from migrate.writers import single_file

SUFFIX = ".npz"


def check_target(dest: str, *, overwrite: bool) -> None:
    """Raise HyperparameterError for another suffix, TargetExistsError if `dest` may not be replaced."""
    single_file.check_target(dest, SUFFIX, weight_list.sniff, "is no get_weights() list", overwrite=overwrite)


def write(
    state: OptimizerState,
    dest: str,
    *,
    order: str | None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write the list, completely or not at all; memory is bounded by the largest array.

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
        with zipfile.ZipFile(path, "x") as archive:
            for index, array in enumerate(arrays):
                with archive.open(f"arr_{index}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array.load()), allow_pickle=False)
                if progress is not None:
                    progress(sum(sizes[: index + 1]), sum(sizes))
        single_file.place(path, dest, overwrite=overwrite)
