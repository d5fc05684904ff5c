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
    """Write the contents of an open file to the disk while it grows, so that little is left for the sync at its end.

    Raises OSError like that final sync: the system reports a part that could not be stored only once.
    """
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
