"""Tensors whose bytes are contiguous and stored as in a TensorFlow checkpoint: copied without decoding.

These are all tensors of a TensorFlow checkpoint except strings and partitioned variables, and every dataset that Keras
wrote to HDF5. They stream through one small buffer: new memory for each costs as much as writing it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import google_crc32c
import numpy as np

from optim.bytes import files
from optim.bytes.checks import Check, Crc32
from optim.bytes.sstable import mask_crc
from optim.bytes.window import Fill
from optim.errors import DamagedFileError

CHUNK = 1 << 18
"""Bytes at a time: they stay in the processor's cache between reading, checksum and writing. Larger pieces come from
memory again, which takes longer than everything else."""


@dataclass(frozen=True)
class Extent:
    """Where a tensor is: little-endian, C order, without gaps.

    `masked_crc` is the masked CRC-32C of its bytes where the source stores one. `check` covers the file around it where
    that has a checksum as a whole: what was read is valid once it has finished. `passing` is given each piece
    that is read, by any reader, and where in the tensor that begins.
    """

    path: str
    offset: int
    size: int
    what: str
    """Its name in messages."""
    masked_crc: int | None = None
    check: Check | None = None
    passing: Callable[[int, np.ndarray], None] | None = None

    def chunks(self, buffer: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the bytes in order, each time as a part of `buffer` (uint8), which the next part overwrites.

        Raises:
          DamagedFileError: the file ends too early or cannot be read; or, at the end, the checksum is wrong.
        """
        position, end, crc, crc32 = self.offset, self.offset + self.size, 0, 0
        whole = self.check if isinstance(self.check, Crc32) and self.check.takes(self.offset, self.size) else None
        with ExitStack() as stack:
            fill: Fill | None = None
            while position < end:
                part = buffer[: end - position]
                try:
                    fill = fill or stack.enter_context(files.filling(self.path))
                    self._fill(fill, part, position)
                except OSError as error:
                    raise self._unreadable(error) from error
                if self.masked_crc is not None:
                    crc = google_crc32c.extend(crc, part)
                if whole is not None:
                    crc32 = zlib.crc32(part.data, crc32)
                if self.passing is not None:
                    self.passing(position - self.offset, part)
                position += part.size
                yield part
        if whole is not None:
            whole.add(self.offset, self.size, crc32)
        if self.masked_crc is not None and mask_crc(crc) != self.masked_crc:
            raise DamagedFileError(f"{self.path} is damaged: wrong checksum of tensor {self.what!r}; copy it again")

    def read(self) -> np.ndarray:
        """All bytes (uint8), in new memory. Raises as `chunks`."""
        whole: np.ndarray = np.empty(self.size, np.uint8)
        for _ in self.chunks(whole):
            pass
        return whole

    def part(self, start: int, end: int) -> Extent:
        """Its bytes from `start` up to `end`, which have no separate checksum."""
        return replace(self, offset=self.offset + start, size=end - start, masked_crc=None, passing=None)

    def _fill(self, fill: Fill, part: np.ndarray, position: int) -> None:
        done = 0
        while done < part.size:
            count = fill(part[done:], position + done)
            if not count:
                raise DamagedFileError(f"{self.path} became shorter while it was read, at tensor {self.what!r}")
            done += count

    def _unreadable(self, error: OSError) -> DamagedFileError:
        return DamagedFileError(f"{self.path} cannot be read ({error.strerror or error}), at tensor {self.what!r}")
