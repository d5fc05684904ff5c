"""Files by name, on this machine or at a URL: readers access a source only through this module.

A name such as `s3://bucket/name` is a URL, which `optim.bytes.remote` reads by ranges; all other names are paths.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import BinaryIO

from optim.bytes import system, urls
from optim.bytes.window import Fill
from optim.errors import CheckpointError

Identity = tuple[object, object, int, object]
"""Device, inode, size in bytes, time of the last change; for a URL: None, itself, size, version."""


def is_file(path: str) -> bool:
    return remote().is_file(path) if urls.is_url(path) else os.path.isfile(path)


def is_folder(path: str) -> bool:
    return remote().is_folder(path) if urls.is_url(path) else os.path.isdir(path)


def exists(path: str) -> bool:
    """Whether this name exists; a broken link counts."""
    return remote().exists(path) if urls.is_url(path) else os.path.lexists(path)


def names(folder: str) -> list[str]:
    """The names in a folder; raises OSError if it cannot be listed."""
    return remote().names(folder) if urls.is_url(folder) else os.listdir(folder or ".")


def walk(folder: str, stop: Callable[[str], bool]) -> Iterator[str]:
    """A folder and the folders in it, in order of name, but not those below a `stop`. Links are left alone."""
    yield folder
    if stop(folder):
        return
    for name in sorted(names(folder)):
        path = os.path.join(folder, name)
        if is_folder(path) and not os.path.islink(path):
            yield from walk(path, stop)


@contextlib.contextmanager
def listings_kept() -> Iterator[None]:
    """Inside, dtopt uses the list of a folder at a URL, and does not ask again for each of its files."""
    with remote().listings_kept():
        yield


@contextlib.contextmanager
def answers_kept(path: str) -> Iterator[None]:
    """Ask a store only once about each file of a source inside this context: a source that changes is refused."""
    if not urls.is_url(path):
        yield
        return
    with remote().answers_kept():
        yield


def size(path: str) -> int:
    """Bytes; raises OSError."""
    return remote().size(path) if urls.is_url(path) else os.path.getsize(path)


def identity(path: str) -> Identity:
    """A key that shows whether a file is unchanged; raises OSError."""
    if urls.is_url(path):
        return remote().identity(path)
    stat = os.stat(path)
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def canonical(path: str) -> str:
    """A unique name for a file, whatever links or spellings were used; its parts are joined by `/`."""
    if urls.is_url(path):
        return path.rstrip("/")
    return system.spelled(os.path.realpath(path)).replace(os.sep, "/")


def absolute(path: str) -> str:
    return path if urls.is_url(path) else os.path.abspath(path)


def opened(path: str) -> BinaryIO:
    """Open for reading and seeking; the caller closes it. Raises OSError."""
    return remote().opened(path) if urls.is_url(path) else open(path, "rb")


@contextlib.contextmanager
def here(path: str) -> Iterator[str]:
    """The path itself, or a copy of what is at a URL. Raises CheckpointError if that cannot be read."""
    if not urls.is_url(path):
        yield path
        return
    with contextlib.ExitStack() as stack:
        try:
            copy = stack.enter_context(remote().copied(path))
        except OSError as error:
            raise CheckpointError(f"{urls.shown(path)} cannot be read: {error.strerror or error}") from None
        yield copy


@contextlib.contextmanager
def zipped(path: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive. Raises zipfile.BadZipFile, and the library's other errors for a damaged one."""
    with opened(path) as file, zipfile.ZipFile(file) as archive:
        yield archive


@contextlib.contextmanager
def filling(path: str) -> Iterator[Fill]:
    """Yield a function that reads pieces of a file. Raises OSError, as the function does."""
    if urls.is_url(path):
        yield remote().fill(path)
        return
    with filling_open(os.open(path, system.READING)) as fill:
        yield fill


@contextlib.contextmanager
def filling_open(descriptor: int) -> Iterator[Fill]:
    """Like `filling`, for an open file, which is closed at the end."""
    try:
        yield lambda buffer, offset: system.read_at(descriptor, buffer.data, offset)
    finally:
        os.close(descriptor)


def remote() -> ModuleType:
    from optim.bytes import remote as module

    return module
