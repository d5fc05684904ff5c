"""Write an HDF5 file so that a full disk is an ordinary error.

HDF5 also writes when it closes; if that fails, the process crashes later. So a refused write is hidden from it: the
first error is stored, and raised after the file is closed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h5py

from optim.bytes.syncing import syncing


class Sink(io.RawIOBase):
    """A file for h5py: a new one, or an existing one from `start` on. After the system's first `error` nothing more is
    written."""

    def __init__(self, path: str, start: int = 0) -> None:
        self._raw = open(path, "r+b" if start else "x+b", buffering=0)  # noqa: SIM115
        self._start = start
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while len(left) and self.error is None:
                left = left[self._raw.write(left) :]
        except OSError as error:
            self.error = error
        return size

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = self._raw.readinto(view) or 0
        if self.error is not None:  # unwritten parts are read as zeros
            view[count:] = bytes(len(view) - count)
            return len(view)
        return count

    def truncate(self, size: int | None = None) -> int:
        try:
            return self._raw.truncate(None if size is None else self._start + size) - self._start
        except OSError as error:
            self.error = self.error or error
            return size or 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._raw.seek(offset + (self._start if whence == os.SEEK_SET else 0), whence) - self._start

    def tell(self) -> int:
        return self._raw.tell() - self._start

    @property
    def descriptor(self) -> int:
        return self._raw.fileno()

    def close(self) -> None:
        self._raw.close()

    def check(self) -> None:
        """Raise the OSError of the first refused write."""
        if self.error is not None:
            raise self.error


@contextmanager
def created(path: str, start: int = 0) -> Iterator[tuple[h5py.File, Sink]]:
    """A new file and its sink; call `check` during long writes. Raises OSError: see `Sink`."""
    sink = Sink(path, start)
    try:
        try:
            with syncing(sink.descriptor), h5py.File(sink, "w") as file:
                yield file, sink
        finally:
            sink.check()
    finally:
        sink.close()
