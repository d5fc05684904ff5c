"""Check whole files while their content is processed."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator

import numpy as np

POLYNOMIAL = 0xEDB88320
"""1 as a polynomial of CRC-32, with the lowest power in the highest bit."""
ONE = 1 << 31
WORTH_JOINING = 1 << 20
"""Bytes from which reading again takes longer than joining checksums."""


class Check:
    """A check of a whole file that runs once, in parallel with the work if started early.

    Args:
      run: raises DamagedFileError if the file is altered.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """Begin, in a separate thread; later calls do nothing."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._remember, daemon=True)
                self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return self._thread is not None and not self._thread.is_alive()

    def finish(self) -> None:
        """Wait for the outcome. Raises the exception of the check."""
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


class Crc32(Check):
    """Compare part of a file with its CRC-32. Parts that others have read meanwhile are not read again.

    Args:
      start, size: where it is.
      read: (offset, size) -> that part of the file, piece by piece.
      compare: gets the CRC-32; raises DamagedFileError if it is wrong.
    """

    def __init__(
        self,
        start: int,
        size: int,
        read: Callable[[int, int], Iterator[np.ndarray]],
        compare: Callable[[int], None],
    ) -> None:
        super().__init__(lambda: compare(self._whole()))
        self._start, self._end, self._read_part = start, start + size, read
        self._known: dict[int, tuple[int, int]] = {}

    def takes(self, offset: int, size: int) -> bool:
        """Whether the CRC-32 of a part that will be read is needed."""
        return self._thread is None and size >= max(WORTH_JOINING, self._known.get(offset, (0, 0))[0] + 1)

    def add(self, offset: int, size: int, crc: int) -> None:
        """Add a part that was read."""
        self._known[offset] = size, crc

    def _whole(self) -> int:
        position, crc = self._start, 0
        for offset, (size, known) in (*sorted(self._known.items()), (self._end, (0, 0))):
            if offset < position:
                continue  # it begins in another part
            for piece in self._read_part(position, offset - position):
                crc = zlib.crc32(piece.data, crc)
            crc, position = joined(crc, known, size), offset + size
        return crc


def joined(first: int, second: int, size: int) -> int:
    """The CRC-32 of two consecutive parts, from those of each; `size` of the second in bytes."""
    power, square = ONE, ONE >> 8  # x^0, and x^8 for a byte
    while size:
        if size & 1:
            power = _product(power, square)
        square, size = _product(square, square), size >> 1
    return _product(first, power) ^ second


def _product(a: int, b: int) -> int:
    """The product of polynomials over GF(2), modulo that of CRC-32."""
    product = 0
    while a:
        if a & ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (POLYNOMIAL if b & 1 else 0)
    return product
