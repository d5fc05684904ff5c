"""File operations that not every system has, and their replacements.

POSIX locks and syncs folders and reads at an offset. Windows does not open folders, and all readers of a descriptor
share one position. A system with neither `fcntl` nor `msvcrt` has no locks.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:
    msvcrt = None  # type: ignore[assignment]

LOCK = ".lock"
"""Ends the name of the file that is locked in place of a folder, which is next to it."""
HAS_LOCKS = fcntl is not None or msvcrt is not None
READING = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_position = threading.Lock()
"""Locked while a read or write moves the position of a descriptor."""


def spelled(path: str) -> str:
    """An absolute path as its folders list it, on systems that ignore case."""
    parent, name = os.path.split(path)
    if parent == path or not name:
        return path
    other = os.path.join(parent, name.swapcase())
    if other != path and os.path.exists(path) and os.path.exists(other) and os.path.samefile(path, other):
        listed = {entry.casefold(): entry for entry in os.listdir(parent)}
        name = listed.get(name.casefold(), name)
    return os.path.join(spelled(parent), name)


def sync(descriptor: int) -> None:
    """Write the contents to the disk; of a file's times only what is needed, if a call can choose that."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable, if the system opens folders; Windows does that by itself."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        if fcntl is None:
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_at(descriptor: int, buffer: Any, offset: int) -> int:
    """Fill a buffer from an offset in a file. Returns the number of bytes read."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], offset)
    view = memoryview(buffer).cast("B")
    with _position:
        os.lseek(descriptor, offset, os.SEEK_SET)
        data = os.read(descriptor, len(view))
    view[: len(data)] = data
    return len(data)


def write_at(descriptor: int, data: Any, offset: int) -> int:
    """Write at an offset in a file. Returns the number of bytes written, possibly fewer."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, offset)
    with _position:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.write(descriptor, data)


def lock(folder: str, *, wait: bool = True) -> int:
    """Lock a folder for this process, until `unlock`. Returns a descriptor.

    Raises BlockingIOError: another process has it, or, with `wait=False`, the system has no locks.
    """
    if fcntl is not None:
        descriptor = os.open(folder, os.O_RDONLY)
        take = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
        with _closing_on_error(descriptor):
            fcntl.flock(descriptor, take)
        return descriptor
    if msvcrt is None and not wait:
        raise BlockingIOError(f"{folder}: this system has no locks")
    os.stat(folder)  # raises FileNotFoundError, as opening it would
    descriptor = os.open(folder + LOCK, os.O_RDWR | os.O_CREAT)
    if msvcrt is not None:
        with _closing_on_error(descriptor):
            try:
                msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            except PermissionError as error:
                raise BlockingIOError(f"{folder} is locked") from error
    return descriptor


def unlock(folder: str, descriptor: int) -> None:
    os.close(descriptor)
    if fcntl is None:
        with contextlib.suppress(OSError):  # another process may have it open
            os.unlink(folder + LOCK)


@contextlib.contextmanager
def _closing_on_error(descriptor: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.close(descriptor)
        raise
