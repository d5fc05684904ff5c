"""A file that grows, stored on disk while more of it is made."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from optim.bytes import system
from optim.bytes.checks import Check

PAUSE = 0.1
"""Seconds between two syncs of a file that grows."""


@contextlib.contextmanager
def syncing(descriptor: int) -> Iterator[None]:
    """Inside, the disk gets what an open file has so far while more is made, so that little is left for the sync at its
    end. Raises OSError, as that would: of a part that could not be stored it does not hear a second time."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(PAUSE):
            system.sync(descriptor)

    beside = Check(run)
    beside.start()
    try:
        yield
    finally:
        done.set()
        beside.finish()
