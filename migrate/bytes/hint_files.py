"""Files that the user gives next to a source: small regular files, which are read at once."""

from __future__ import annotations

import os
import stat

LARGEST = 64 << 20
"""Most bytes of a hint."""


def read(path: str | os.PathLike[str]) -> bytes:
    """Read a hint file. Raises as `check`."""
    check(path)
    with open(path, "rb") as file:
        return file.read(LARGEST)


def check(path: str | os.PathLike[str]) -> None:
    """Check a hint file before it is read.

    Raises:
      OSError: the system refuses access. ValueError: it is not a regular file, or larger than any hint.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{os.fspath(path)} is not a regular file: give a file that holds the hint itself")
    if status.st_size > LARGEST:
        raise ValueError(
            f"{os.fspath(path)} has {status.st_size} bytes, and a hint has at most {LARGEST}: give the hint alone"
        )
