"""Delay Ctrl-C while variables change: a step is made completely or not at all."""

from __future__ import annotations

import threading
from _signal import SIGINT, getsignal, signal  # type: ignore[import-not-found]  # no enums, which take 7 of 8 us
from types import FrameType, TracebackType
from typing import Any


class Deferred:
    """Record SIGINT inside the block, and call the previous handler afterwards.

    Python runs handlers in the main thread; steps in others are never interrupted. A handler that is not Python's, as
    in a program that embeds it, stays unchanged.
    """

    def __enter__(self) -> None:
        self._noted: list[FrameType | None] = []
        self._handler: Any = getsignal(SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(self._handler):
            self._handler = None
            return
        signal(SIGINT, lambda number, frame: self._noted.append(frame))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._handler is None:
            return
        signal(SIGINT, self._handler)
        if self._noted:
            self._handler(SIGINT, self._noted[0])
