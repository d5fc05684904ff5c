"""Targets behind URLs: written on this machine, and sent so that a reader sees a whole one or none.

A store has no rename. A single file appears when it is complete. Of a slot-variable checkpoint the file that names the
state goes last; until then a folder has no state, or the one it had.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

from migrate.bytes import files, remote, urls
from migrate.bytes.source import still_the_same
from optim import slot_layout
from optim.errors import CheckpointError


@contextlib.contextmanager
def sent_to(dest: str) -> Iterator[str]:
    """A path to write to; what is there in the end is sent to the URL `dest`. A plain path is given as it is.

    Raises:
      CheckpointError: sending failed, and what had been sent was removed.
    """
    if not urls.is_url(dest):
        yield dest
        return
    with tempfile.TemporaryDirectory(prefix="dtopt-") as folder:
        local = os.path.join(folder, dest.rstrip("/").rsplit("/", 1)[-1])
        yield local
        still_the_same()
        _send(local, dest)


def _send(local: str, dest: str) -> None:
    pairs = [(local, dest)]
    older: list[str] = []
    if os.path.isdir(local):
        dest = dest.rstrip("/")
        last = slot_layout.POINTER_NAME
        pairs = [(os.path.join(local, n), f"{dest}/{n}") for n in sorted(os.listdir(local), key=lambda n: n == last)]
        older = [f"{dest}/{n}" for n in files.names(dest) if n != last] if files.is_folder(dest) else []
    done: list[str] = []
    try:
        for path, url in pairs:
            done.append(url)
            remote.send(path, url)
    except OSError as error:
        replaced = files.is_folder(dest) and bool(older)
        for url in done:
            if url != f"{dest}/{slot_layout.POINTER_NAME}" or not replaced:
                remote.remove(url)
        raise CheckpointError(f"sending {dest} failed: {error}; what had been sent was removed") from error
    for url in older:
        remote.remove(url)
