"""Start a peer's worker and talk to it: equal threads, a timeout on every answer, a reason for every death."""

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
    """A worker crashed, hung or answered with an error. The message is the reason in the row."""


class UnsupportedCaseError(WorkerError):
    """A worker reports that its peer does not support the case. That is not a failure, but the row has no times."""


class HungError(WorkerError):
    """A worker gave no answer in time."""


def allowed_cpus() -> list[int]:
    """Return the CPUs that this process may use."""
    return sorted(os.sched_getaffinity(0))


def threads_of(count: int | None) -> int:
    """Return the threads of each peer: those wanted, or one for each CPU that may be used. Raises: OptionError."""
    allowed = len(allowed_cpus())
    if count is not None and count > allowed:
        raise OptionError(f"{count} threads are asked for, and this process may use {allowed} CPUs")
    return count or allowed


def worker_environment(threads: int) -> dict[str, str]:
    """Return the parent's environment, with every thread pool set to the same size and quiet frameworks.

    How OpenMP's threads wait is left to the user's settings: OMP_WAIT_POLICY=PASSIVE makes torch's fused step on 1,000
    small tensors 15 times slower. By default they sleep within milliseconds (libgomp) after their last task.
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
        # The worker imports from the same path as this process, whatever its folder.
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path),
    }
    return {**os.environ, **settings}


@cache
def _folder_of_this_process() -> str:
    """Return a folder that is removed when this process ends, even after an interrupt."""
    folder = tempfile.TemporaryDirectory(prefix="dtopt-bench-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    return folder.name


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of the block: a second one must not end the clean-up after the first."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Worker(Protocol):
    """A driven worker: a Child, or a fake."""

    def request(self, do: str, **arguments: Any) -> None: ...

    def answer(self, timeout: float) -> dict[str, Any]: ...

    def stop(self) -> None: ...


class Running(Protocol):
    """A process: the part of subprocess.Popen that is used here."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


Start = Callable[[str, int, str, int], Running]
"""Starts a module, with the descriptor of its end of the pipe, the folder to run in, and the file for its output."""


def fresh(environment: dict[str, str], python: str | None = None) -> Start:
    """Return a function that starts a new interpreter, `python -m MODULE FD`, with exactly these environment variables.

    Args:
      python: another interpreter than this one.
    """

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
    """A process at the other end of a pipe.

    Args:
      module: the module to run.
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
        """Return how the process ended, or None while it runs."""
        return self._death() if self._child.poll() is not None else None

    def request(self, do: str, **arguments: Any) -> None:
        """Send a request; `answer` fetches the reply."""
        self._waiting_for = do
        self._send({"do": do, **arguments})

    def answer(self, timeout: float) -> dict[str, Any]:
        """Return the answer to the oldest unanswered request, within `timeout` seconds. Raises: WorkerError."""
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
        """End the worker with its processes, and remove its folder. May be called twice."""
        if not self._ended:
            for process in load.members(self._child.pid):  # while its session exists
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
