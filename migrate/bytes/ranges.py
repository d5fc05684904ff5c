"""Tensors whose bytes lie in one piece of a file, just as a TensorFlow checkpoint stores them: copied, not decoded.

That is all of a TensorFlow checkpoint but strings and partitioned variables, and every dataset that Keras wrote to
HDF5. Such a tensor streams through one small buffer: fresh memory for each costs as much as writing it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import google_crc32c
import numpy as np

from migrate.bytes import files
from migrate.bytes.sstable import mask_crc
from migrate.bytes.window import Fill
from migrate.errors import DamagedFileError

CHUNK = 1 << 18
"""Bytes at a time: they stay in the processor's cache between reading, checksum and writing. For a larger piece the
system fetches memory anew, which takes longer than all the rest."""


class Check:
    """A check of a whole file, which runs once, along with the work if that asks for it early.

    Args:
      run: raises DamagedFileError where the file is not what was written.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """Begin, in a thread of its own; later calls do nothing."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._remember, daemon=True)
                self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return self._thread is not None and not self._thread.is_alive()

    def finish(self) -> None:
        """Wait for the outcome. Raises what the check raised."""
        self.start()
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _remember(self) -> None:
        try:
            self._run()
        except BaseException as error:  # raised again in the thread that asks
            self._error = error


@dataclass(frozen=True)
class Extent:
    """Where a tensor lies: little-endian, C order, without gaps.

    `masked_crc` is the masked CRC-32C of its bytes where the source stores one. `check` covers the file around it where
    that has a checksum as a whole: what was read is to be believed once it has finished.
    """

    path: str
    offset: int
    size: int
    what: str
    """Its name in messages."""
    masked_crc: int | None = None
    check: Check | None = None

    def chunks(self, buffer: np.ndarray) -> Iterator[np.ndarray]:
        """The bytes in order, each time as a part of `buffer` (uint8), which the next part overwrites.

        Raises:
          DamagedFileError: the file ends too early or cannot be read, or at the end, the checksum is wrong.
        """
        position, end, crc = self.offset, self.offset + self.size, 0
        try:
            with files.filling(self.path) as fill:
                while position < end:
                    part = buffer[: end - position]
                    self._fill(fill, part, position)
                    position += part.size
                    if self.masked_crc is not None:
                        crc = google_crc32c.extend(crc, part)
                    yield part
        except OSError as error:
            raise self._unreadable(error) from error
        if self.masked_crc is not None and mask_crc(crc) != self.masked_crc:
            raise DamagedFileError(f"{self.path} is damaged: wrong checksum of tensor {self.what!r}; copy it again")

    def read(self) -> np.ndarray:
        """All bytes (uint8), in memory of their own. Raises as `chunks`."""
        whole: np.ndarray = np.empty(self.size, np.uint8)
        for _ in self.chunks(whole):
            pass
        return whole

    def part(self, start: int, end: int) -> Extent:
        """Its bytes from `start` up to `end`, which have no checksum of their own."""
        return replace(self, offset=self.offset + start, size=end - start, masked_crc=None)

    def _fill(self, fill: Fill, part: np.ndarray, position: int) -> None:
        done = 0
        while done < part.size:
            count = fill(part[done:], position + done)
            if not count:
                raise DamagedFileError(f"{self.path} became shorter while it was read, at tensor {self.what!r}")
            done += count

    def _unreadable(self, error: OSError) -> DamagedFileError:
        return DamagedFileError(f"{self.path} cannot be read ({error.strerror or error}), at tensor {self.what!r}")
