"""Starts a peer's worker and talks to it: equal threads, a timeout on every answer, a reason for every
death."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from bench.errors import OptionError
from bench.measuring import load

STDERR_TAIL = 4000


class WorkerError(Exception):
    """A worker crashed, hung or answered with an error. The message is the reason shown in the row."""


class UnsupportedCaseError(WorkerError):
    """A worker says that its peer cannot do what the case asks for: no failure, but no row with times either."""


class HungError(WorkerError):
    """A worker gave no answer in time."""


def allowed_cpus() -> list[int]:
    """CPUs that this process may use."""
    return sorted(os.sched_getaffinity(0))


def threads_of(wanted: int | None) -> int:
    """Threads of each peer: those wanted, or one for each CPU that may be used. Raises: OptionError."""
    allowed = len(allowed_cpus())
    if wanted is not None and wanted > allowed:
        raise OptionError(f"{wanted} threads are asked for, and this process may use {allowed} CPUs")
    return wanted or allowed


def worker_environment(threads: int) -> dict[str, str]:
    """The parent's environment, with every thread pool set alike and quiet frameworks.

    How OpenMP's threads wait stays as users have it: OMP_WAIT_POLICY=PASSIVE makes torch's fused step on 1,000 small
    tensors 15 times slower than it is. By default they fall asleep within milliseconds (libgomp) of their last task.
    """
    count = str(threads)
    settings = {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "NPROC": count,  # XLA's CPU client
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        # The worker finds what this process finds, wherever it is started from.
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path),
    }
    return {**os.environ, **settings}


@cache
def _folder_of_this_process() -> str:
    """Removed when this process ends, however it was interrupted."""
    folder = tempfile.TemporaryDirectory(prefix="dtopt-bench-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    return folder.name


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until this is left: another of them must not end what clears up after the first."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Worker(Protocol):
    """What is driven: a Child, or a fake."""

    def request(self, do: str, **arguments: Any) -> None: ...

    def answer(self, timeout: float) -> dict[str, Any]: ...

    def stop(self) -> None: ...


class Running(Protocol):
    """A process: what is used of subprocess.Popen."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


Start = Callable[[str, int, str, int], Running]
"""Of a module, with the descriptor of its end of the pipe, the folder to run in, and where its output goes."""


def fresh(environment: dict[str, str], python: str | None = None) -> Start:
    """Starts of a new interpreter, `python -m MODULE FD`, with all of these environment variables; `python`: another
    one than this."""

    def start(module: str, pipe: int, folder: str, output: int) -> Running:
        return subprocess.Popen(
            [python or sys.executable, "-m", module, str(pipe)],
            pass_fds=(pipe,),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=folder,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which ends the workers itself
        )

    return start


class Child:
    """A process held at a pipe.

    Args:
      module: what it runs.
      hello: the first message sent to it; it answers when it has started.
      start: `fresh`, or the `fork` of a Server.
    """

    def __init__(self, module: str, hello: dict[str, Any], start: Start) -> None:
        ours, theirs = multiprocessing.Pipe()
        self.pipe = ours
        # An empty folder to run in: a file named like a module in the user's folder must not be imported.
        self._folder = tempfile.mkdtemp(dir=_folder_of_this_process())
        self._stderr = open(Path(self._folder) / "stderr", "w+", errors="replace")  # noqa: SIM115 - closed in stop
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, hello.get("cpus", before))  # inherited by every thread of the child from its first
        try:
            with theirs:
                self._child = start(module, theirs.fileno(), self._folder, self._stderr.fileno())
        finally:
            os.sched_setaffinity(0, before)
        self._waiting_for = "starting"
        self._ended = False
        self._send(hello)

    @property
    def pid(self) -> int:
        return self._child.pid

    def died(self) -> str | None:
        """How the process ended, or None while it runs."""
        return self._death() if self._child.poll() is not None else None

    def request(self, do: str, **arguments: Any) -> None:
        """Sends a request; `answer` fetches what comes back."""
        self._waiting_for = do
        self._send({"do": do, **arguments})

    def answer(self, timeout: float) -> dict[str, Any]:
        """The answer to the oldest unanswered request, within `timeout` seconds. Raises: WorkerError."""
        try:
            if not self.pipe.poll(timeout):
                raise HungError(f"gave no answer within {timeout:.0f} s while it was asked to {self._waiting_for}")
            answer = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise WorkerError(self._death()) from None
        if "unsupported" in answer:
            raise UnsupportedCaseError(answer["unsupported"])
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer["ok"]

    def stop(self) -> None:
        """Ends the worker with its processes, and removes its folder. May be called twice."""
        if not self._ended:
            for process in load.members(self._child.pid):  # while it runs: what it leaves behind is nobody's
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            self._child.wait()
            self._ended = True
        self.pipe.close()
        self._stderr.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self.pipe.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise WorkerError(self._death()) from None

    def _death(self) -> str:
        code = self._child.wait()
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._stderr.flush()
        text = Path(self._stderr.name).read_text(errors="replace")[-STDERR_TAIL:]
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f"{how}: {lines[-1]}" if lines else how
