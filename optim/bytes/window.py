"""Part of a file as a separate file, whatever reads its bytes."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import numpy as np

Fill = Callable[[np.ndarray, int], int]
"""(buffer of uint8, offset) -> number of bytes that were read into it from there; 0 at the end of the file."""


class Window(io.RawIOBase):
    """Part of an open file, read-only; closing it closes that file."""

    def __init__(self, file: contextlib.AbstractContextManager[Fill], start: int, size: int) -> None:
        self._file, self._start, self._size, self._position = contextlib.ExitStack(), start, size, 0
        self._fill = self._file.enter_context(file)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"a seek to {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._size - self._position))
        if not length:
            return 0
        count = self._fill(np.frombuffer(buffer, np.uint8)[:length], self._start + self._position)
        self._position += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
