"""Compare two arrays bit for bit, in bounded memory if both are stored unencoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from migrate.bytes.arrays import LazyArray, widened
from optim.bytes.bundle import STRING, numpy_dtype

CHUNK = 2 << 20
"""Bytes at a time: they stay in the processor's cache, and reading threads seldom wait for one that runs Python."""
WORD = np.dtype(np.uint64)


class Comparer:
    """Compare arrays one after another, with two buffers for all.

    Args:
      report: called with the number of compared bytes, at intervals.
    """

    def __init__(self, report: Callable[[int], None] = lambda _: None) -> None:
        self._report = report
        self._buffers = np.empty(CHUNK, np.uint8), np.empty(CHUNK, np.uint8)

    def difference(self, want: LazyArray, got: LazyArray) -> str:
        """Describe how `got` differs in shape, dtype or any bit; empty if it does not.

        Raises:
          DamagedFileError: one of them cannot be read, or has a wrong checksum.
        """
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
        differ, unequal = False, 0
        for a, b in self._parts(want, got):
            if not _have_equal_bytes(a, b):
                differ = True
                unequal += _unequal(a, b, want.dtype)
            self._report(a.nbytes)
        if unequal:
            return f"differs in {unequal} of {want.size} numbers"
        return "differs in bits (NaN payload or sign of zero)" if differ else ""

    def _parts(self, want: LazyArray, got: LazyArray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if want.extent is not None and got.extent is not None:
            parts = (
                extent.chunks(buffer) for extent, buffer in zip((want.extent, got.extent), self._buffers, strict=True)
            )
            yield from zip(*parts, strict=True)
        else:
            yield _bytes(want), _bytes(got)


def _have_equal_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    if a.size != b.size:
        return False
    whole = a.size - a.size % WORD.itemsize
    return np.array_equal(a[:whole].view(WORD), b[:whole].view(WORD)) and np.array_equal(a[whole:], b[whole:])


def _bytes(array: LazyArray) -> np.ndarray:
    value = array.load()
    if array.dtype == STRING:
        return np.frombuffer(b"".join(map(bytes, value.ravel())), np.uint8)
    return np.ascontiguousarray(value, numpy_dtype(array.dtype)).reshape(-1).view(np.uint8)


def _unequal(a: np.ndarray, b: np.ndarray, dtype: str) -> int:
    """Count the numbers that differ in more than a NaN's payload or a zero's sign; both are flat bytes."""
    if dtype == STRING or a.size != b.size:
        return 1
    one, other = (widened(part.view(numpy_dtype(dtype)), dtype) for part in (a, b))
    return int(np.sum(~((one == other) | (np.isnan(one) & np.isnan(other)))))
