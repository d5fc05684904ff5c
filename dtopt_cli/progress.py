"""The bar of work that takes over two seconds."""

from __future__ import annotations

import time
from typing import Any

from dtopt_cli import output

SHOW_AFTER = 2.0


class Bar:
    """A bar on stderr, called with (done, in all); it appears once the work has taken a while.

    Args:
      label: what is being done.
      in_bytes: whether the numbers are bytes (shown with their speed), else things.
    """

    def __init__(self, label: str, *, in_bytes: bool):
        self._label = label
        self._in_bytes = in_bytes
        self._started = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None and time.monotonic() - self._started > SHOW_AFTER:
            self._bar = self._make()
            self._task = self._bar.add_task(self._label, total=total)
            self._bar.start()
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)

    def _make(self) -> Any:
        from rich import progress

        amounts = [progress.DownloadColumn(), progress.TransferSpeedColumn()]
        columns = amounts if self._in_bytes else [progress.MofNCompleteColumn()]
        last = progress.TimeRemainingColumn()
        return progress.Progress(self._label, progress.BarColumn(), *columns, last, console=output.messages())

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
