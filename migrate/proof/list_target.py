"""Prove that a `get_weights()` list equals its source: numpy reads it again, array by array."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator

import numpy as np

from migrate.bytes.arrays import LazyArray
from migrate.errors import DamagedFileError
from migrate.lists import orders
from migrate.lists.planning import Plan

SUFFIX = ".npz"
"""Suffix of the lists that dtopt writes."""


def is_list(dest: str) -> bool:
    """Whether the target is a list, by its suffix."""
    return dest.endswith(SUFFIX) and os.path.isfile(dest)


def differences(plan: Plan, dest: str) -> Iterator[str]:
    """Yield every array of the list in `dest` (`.npz`) that is not bit for bit the plan's.

    Raises:
      DamagedFileError: numpy cannot read the file.
    """
    labels = _array_names(plan)
    try:
        with np.load(dest, allow_pickle=False) as file:
            names = list(file.files)
            if names != [f"arr_{i}" for i in range(len(names))]:
                yield f"its members are {', '.join(names[:5])}, not arr_0, arr_1, ..."
                return
            if len(names) != len(plan.arrays):
                yield f"it holds {len(names)} arrays, not {len(plan.arrays)}: {orders.describe(plan.order)}"
            for name, label, want in zip(names, labels, plan.arrays, strict=False):
                problem = _difference(want, file[name])
                if problem:
                    yield f"{name} ({label}) {problem}"
    except (OSError, ValueError, EOFError, KeyError, MemoryError, zlib.error, zipfile.BadZipFile) as error:
        raise DamagedFileError(f"{dest} cannot be read: {error}; migrate it again") from error


def _array_names(plan: Plan) -> list[str]:
    scalars = iter(item for item in plan.order if isinstance(item, str))
    return [array.stored_as or next(scalars, "made for the list") for array in plan.arrays]


def _difference(want: LazyArray, got: np.ndarray) -> str:
    if got.shape != want.shape or got.dtype.name != want.dtype:
        return f"is {got.dtype.name}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
    expected = np.ascontiguousarray(want.load()).reshape(want.shape)
    if expected.tobytes() == np.ascontiguousarray(got).tobytes():
        return ""
    unequal = int(np.sum(~((got == expected) | ((got != got) & (expected != expected)))))
    return (
        f"differs in {unequal} of {want.size} numbers" if unequal else "differs in bits (NaN payload or sign of zero)"
    )
