"""Ctrl-C that comes while variables change waits until they have changed: a step is done, or it is not."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred() -> Iterator[None]:
    """Inside, SIGINT is only noted; afterwards the handler that was there is called.

    Python runs handlers in the main thread; steps in others are never interrupted. A handler that is not Python's, as
    in a program that embeds it, is left alone.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    noted: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda number, frame: noted.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if noted:
            handler(signal.SIGINT, noted[0])
