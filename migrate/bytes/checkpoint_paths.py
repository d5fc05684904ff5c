"""Find the prefix of a TensorFlow checkpoint from a user's path."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from migrate.errors import AmbiguousError, UnknownFormatError
from optim.bytes import files, sstable, urls

_POINTER = re.compile(r'^model_checkpoint_path:\s*"((?:[^"\\]|\\.)*)"', re.MULTILINE)
POINTER = "checkpoint"
"""The file with which TensorFlow names the newest state of a folder."""
CHIEF = "chief"
"""The folder of Keras's `BackupAndRestore` for its one checkpoint."""
_SHARD = re.compile(r"\.data-\d{5}-of-\d{5}$")
_PART = re.compile(r"\.(data-\d{5}-of-\d{5}|meta)$")


def find_prefix(path: str) -> str | None:
    """Return the prefix `P` with a file `P.index`, or None if `path` is not a TensorFlow checkpoint.

    Args:
      path: a prefix, its `.index`, `.meta` or one of its data files; or a folder, or the file `checkpoint` in it, for
        the state that this file names, or else the only one there.

    Raises:
      AmbiguousError: a folder with several states and no file `checkpoint`.
    """
    if urls.is_signed(path):
        return None
    if files.is_folder(path):
        return _of_folder(path)
    for prefix in (path, path.removesuffix(".index"), _PART.sub("", path)):
        if files.is_file(prefix + ".index"):
            return prefix
    if os.path.basename(path) == POINTER and files.is_file(path):
        return _of_folder(os.path.dirname(path) or os.curdir)
    return None


def require_prefix(path: str) -> str:
    """Do the same as `find_prefix`. Raises UnknownFormatError if there is no prefix."""
    prefix = find_prefix(path)
    if prefix is None:
        raise UnknownFormatError(
            f"{path} is not a TensorFlow checkpoint: there is no {path}.index, nor one that it names"
        )
    return prefix


def files_of(prefix: str) -> list[str]:
    """The index and the data files of a checkpoint."""
    folder, name = os.path.split(prefix)
    if urls.is_url(prefix):  # a web server does not list folders
        from optim.bytes.bundle import BundleReader, shard_name  # protocol buffers, loaded only here

        shards = BundleReader(prefix).shards if files.is_file(prefix + ".index") else 0
        names = [shard_name(name, i, shards) for i in range(shards)]
    else:
        names = [n for n in files.names(folder) if n.startswith(name + ".") and _SHARD.search(n)]
    return [path for path in (prefix + ".index", *(os.path.join(folder, n) for n in names)) if files.exists(path)]


def without_index(names: Iterable[str]) -> list[str]:
    """Prefixes of TensorFlow checkpoints with data or a graph but no index, among the names in a folder."""
    unique = set(names)
    prefixes = {_PART.sub("", name) for name in unique if _PART.search(name)}
    return sorted(prefix for prefix in prefixes if prefix and f"{prefix}.index" not in unique)


def looks_like_bundle(prefix: str) -> bool:
    """Whether `prefix` is meant as a TensorBundle, damaged or not."""
    if urls.is_signed(prefix):
        return False
    if sstable.has_magic(prefix + ".index"):
        return True
    folder, name = os.path.split(prefix)
    return not urls.is_url(prefix) and any(n.startswith(name + ".") and _SHARD.search(n) for n in files.names(folder))


def _of_folder(folder: str) -> str | None:
    try:
        with files.opened(os.path.join(folder, POINTER)) as file:
            pointer = _POINTER.search(file.read(1 << 20).decode())
    except (OSError, UnicodeDecodeError):
        pointer = None
    if pointer:
        named = _unquote(pointer.group(1))
        moved = os.path.join(folder, os.path.basename(named))
        # After a folder was moved, the file still has the absolute path of the old place.
        exact = os.path.join(folder, named)
        for prefix in (moved, exact) if os.path.isabs(named) else (exact, moved):
            if files.is_file(prefix + ".index"):
                return prefix
        if urls.is_url(named):
            raise UnknownFormatError(
                f"{os.path.join(folder, POINTER)} names {named}, which is not in this folder; migrate that"
            )
    states = sorted(n.removesuffix(".index") for n in files.names(folder) if n.endswith(".index"))
    if pointer and states:
        raise AmbiguousError(
            f"{os.path.join(folder, POINTER)} names {named}, which is missing; name one of:"
            f" {', '.join(os.path.join(folder, name) for name in states[:10])}"
        )
    if len(states) > 1:
        raise AmbiguousError(
            f"{folder} holds {len(states)} checkpoints and no file `checkpoint` that names one of them;"
            " name one:"
            f" {', '.join(os.path.join(folder, name) for name in states[:10])}"
        )
    if not states and files.is_folder(os.path.join(folder, CHIEF)):
        return _of_folder(os.path.join(folder, CHIEF))
    return os.path.join(folder, states[0]) if states else None


def _unquote(text: str) -> str:
    """Undo the escapes of protocol buffers' text format, in which bytes outside ASCII are octal."""

    def byte(match: re.Match[str]) -> bytes:
        code = match.group(1)
        if code[0] in "01234567":
            return bytes([int(code, 8) & 0xFF])
        return {"n": b"\n", "t": b"\t", "r": b"\r"}.get(code, code.encode())

    out, last = b"", 0
    for match in re.finditer(r"\\([0-7]{1,3}|.)", text):
        out += text[last : match.start()].encode() + byte(match)
        last = match.end()
    return (out + text[last:].encode()).decode("utf-8", "surrogateescape")
