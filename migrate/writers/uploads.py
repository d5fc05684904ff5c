"""Targets at URLs: written locally, and uploaded so that a reader sees a complete one or nothing.

A store has no rename. A single file appears when it is complete. The file that names the state of a slot-variable
checkpoint goes last; until then a folder has no state, or the previous one.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

from migrate.bytes.source import check_unchanged
from optim import slot_layout
from optim.bytes import files, remote, urls
from optim.errors import CheckpointError


@contextlib.contextmanager
def sent_to(dest: str) -> Iterator[str]:
    """Yield a local path whose final content is uploaded to the URL `dest`. A plain path is returned unchanged.

    Raises:
      CheckpointError: the upload failed, and its parts were removed.
    """
    if not urls.is_url(dest):
        yield dest
        return
    with tempfile.TemporaryDirectory(prefix="dtopt-") as folder:
        local = os.path.join(folder, dest.rstrip("/").rsplit("/", 1)[-1])
        yield local
        check_unchanged()
        _send(local, dest)


def _send(local: str, dest: str) -> None:
    """Upload everything, then remove what it replaces; after an error remove the new files and keep the old ones."""
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
