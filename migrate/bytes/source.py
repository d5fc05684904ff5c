"""The regular files of a source, which must not change while it is migrated.

Readers open files by name, some of them late. A source that is rewritten meanwhile would be migrated half old and half
new. Its files are therefore listed once, and compared again before a target gets its name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from migrate.bytes import checkpoint_paths
from migrate.errors import DamagedFileError, UnknownFormatError
from optim.bytes import files, urls

POINTERS = {
    b"version https://git-lfs.github.com/spec/": ("Git LFS", "git lfs pull"),
    b"/annex/objects/": ("git-annex", "git annex get"),
}
"""First bytes of the small file that a clone has instead of a large one, its program, and how to fetch it."""
LARGEST_POINTER = 1024
MEMBERS = ("saved_model.pb", "keras_metadata.pb", "variables/variables.index")
"""Files in a folder that a reader opens, in addition to those of a checkpoint's prefix."""


@dataclass(frozen=True)
class Source:
    """`files`: path -> a key that shows whether it is unchanged."""

    path: str
    files: dict[str, files.Identity]

    def check(self) -> None:
        """Raise DamagedFileError if a file has changed."""
        for path, known in self.files.items():
            try:
                now = files.identity(path)
            except OSError as error:
                raise DamagedFileError(f"{path} went away while it was read; nothing was written") from error
            if now != known:
                raise DamagedFileError(
                    f"{path} was changed while it was read, so nothing was written; migrate it again when the"
                    " training run does not write to it, or a copy of it"
                )


_WATCHED: ContextVar[Source | None] = ContextVar("watched", default=None)


def open_source(path: str) -> Source:
    """List the files of a source.

    Raises:
      UnknownFormatError: one of them is not a regular file, or only a pointer to one.
    """
    source = Source(path, {member: _regular(member) for member in _files(path)})
    for member, (_, _, size, _) in source.files.items():
        if 0 < size <= LARGEST_POINTER:
            _check_is_itself(member)
    return source


def _check_is_itself(path: str) -> None:
    with files.opened(path) as file:
        start = file.read(64)
    for begin, (program, command) in POINTERS.items():
        if start.startswith(begin):
            error = UnknownFormatError(
                f"{path} is a pointer of {program}, and not the file itself. Fetch the file in its clone"
            )
            error.commands = (command,)
            raise error


@contextmanager
def watching(source: Source | None) -> Iterator[None]:
    """Let `check_unchanged` compare this source, if there is one."""
    token = _WATCHED.set(source)
    try:
        yield
    finally:
        _WATCHED.reset(token)


def check_unchanged() -> None:
    """Call this before a target gets its name. Raises DamagedFileError if the source was changed meanwhile."""
    watched = _WATCHED.get()
    if watched is not None:
        watched.check()


def _files(path: str) -> list[str]:
    if "\0" in path:
        raise UnknownFormatError("a path cannot hold a NUL character; give the name of a file or folder")
    paths = [path] if files.exists(path) and not files.is_folder(path) else []
    if files.is_folder(path):
        pointer = os.path.join(path, "checkpoint")
        paths += [pointer] if files.exists(pointer) and not files.is_folder(pointer) else []
        paths += [member for name in MEMBERS if files.exists(member := os.path.join(path, name))]
        for member in paths:
            _regular(member)  # before anything in it is read
    for prefix in () if urls.is_signed(path) else (path, path.removesuffix(".index")):
        if files.exists(f"{prefix}.index"):
            _regular(f"{prefix}.index")
    prefix = checkpoint_paths.find_prefix(path) or ""
    if not prefix and not urls.is_signed(path) and files.is_file(os.path.join(path, MEMBERS[2])):
        prefix = os.path.join(path, MEMBERS[2]).removesuffix(".index")
    if prefix:
        paths += checkpoint_paths.files_of(prefix)
        paths += [graph for graph in (f"{prefix}.meta",) if files.is_file(graph)]
    return list(dict.fromkeys(paths))


def _regular(path: str) -> files.Identity:
    try:
        if not urls.is_url(path) and not stat.S_ISREG(os.stat(path).st_mode):
            raise UnknownFormatError(
                f"{path} is not a regular file (a pipe, a device, a folder?); copy its content to one"
            )
        return files.identity(path)
    except OSError as error:
        why = error.strerror or error
        if not urls.is_url(path) and os.path.islink(path) and not os.path.exists(path):
            why = f"it is a link to {os.readlink(path)}, which does not exist"
        raise UnknownFormatError(f"{path} cannot be read: {why}") from error
