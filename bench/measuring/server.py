"""The process that workers of one interpreter are forked from, see `bench.measuring.forking`, and its forked
workers."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.reduction import send_handle
from typing import Any

from bench.measuring.process import Child, Running, Start, WorkerError, fresh, undisturbed

STARTS, ANSWERS = 300.0, 20.0
"""Most seconds of TensorFlow's import, and of an answer."""


class Server:
    """Forks processes that have imported TensorFlow.

    They have its interpreter, its environment and its CPUs, and end with it.
    """

    def __init__(self, environment: dict[str, str], cpus: Sequence[int], python: str | None = None) -> None:
        self._child = Child("bench.measuring.forking", {"cpus": cpus}, fresh(environment, python))
        self._imported = self._broken = False
        self.forked = 0

    def fork(self, paths: Sequence[str] = ()) -> Start:
        """Return a function that starts processes with these folders first on their path. The function raises
        WorkerError."""

        def start(module: str, pipe: int, folder: str, output: int) -> Running:
            request = {"module": module, "folder": folder, "paths": list(paths)}
            process = self._ask("fork", (pipe, output), **request)
            self.forked += 1
            return Forked(process, self)

        return start

    def ended(self, process: int) -> int | None:
        """Return how a forked process has ended, as subprocess's return code, or None while it runs."""
        try:
            return self._ask("ended", process=process)
        except WorkerError:
            return -signal.SIGKILL

    def stop(self) -> None:
        """End it with all processes that it forked. May be called twice."""
        self._broken = True
        self._child.stop()

    def _ask(self, do: str, handles: Sequence[int] = (), **arguments: Any) -> Any:
        """Return the answer, before anything else is asked. After one missing answer, nothing is asked again."""
        if self._broken:
            raise WorkerError("the process that it was forked from has ended")
        try:
            if not self._imported:
                self._child.answer(STARTS)
                self._imported = True
            with undisturbed():
                self._child.request(do, **arguments)
                for handle in handles:
                    send_handle(self._child.pipe, handle, self._child.pid)
                return self._child.answer(ANSWERS)
        except (WorkerError, OSError) as error:
            self.stop()
            raise WorkerError(f"the process that it is forked from {error}") from error


@dataclass
class Forked:
    """A child of a server, with the interface of subprocess.Popen."""

    pid: int
    server: Server
    code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            self.code = self.server.ended(self.pid)
        return self.code

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.01)
        return code
