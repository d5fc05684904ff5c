"""Targets behind URLs: written on this machine, and sent so that a reader sees a whole one or none.

A store has no rename. A single file appears when it is complete. Of a slot-variable checkpoint the file that names the
state goes last; until then a folder has no state, or the one it had.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

from migrate.bytes.source import still_the_same
from optim import slot_layout
from optim.bytes import files, remote, urls
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
    """Whole, and then what it replaces is removed; or what came is removed, and what was there is left."""
    dest = dest.rstrip("/")
    if os.path.isdir(local):
        pointer_last = sorted(os.listdir(local), key=lambda name: name == slot_layout.POINTER_NAME)
        pairs = [(os.path.join(local, name), f"{dest}/{name}") for name in pointer_last]
        older = files.names(dest) if files.is_folder(dest) else []
        before = {f"{dest}/{name}" for name in older if slot_layout.is_ours(name)}
    else:
        pairs = [(local, dest)]
        before = {dest} if files.exists(dest) else set()
    sent = {url for _, url in pairs}
    unwanted = sent - before
    try:
        for path, url in pairs:
            remote.send(path, url)
        unwanted = before - sent
    except OSError as error:
        raise CheckpointError(f"sending {dest} failed: {error}; what had been sent was removed") from error
    finally:
        for url in unwanted:
            remote.remove(url)
