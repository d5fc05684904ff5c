"""Processes that do one task after another; if one dies, only its task is lost."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing import connection
from typing import Any

SECONDS_TO_TIDY_UP = 10.0


class WorkerDiedError(Exception):
    """A process ended during a task: killed, out of memory, or by a fault in a library."""


class _Worker:
    def __init__(self, do: Callable[[Any], Any]):
        context = multiprocessing.get_context("spawn")  # a fork would copy the locks of TensorFlow's threads
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, do), daemon=True)
        with _interrupts_ignored():
            self.process.start()
        theirs.close()
        self.task: int | None = None

    def end(self) -> None:
        self.pipe.close()
        self.process.join(SECONDS_TO_TIDY_UP)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def in_processes(
    do: Callable[[Any], Any], tasks: Sequence[Any], processes: int
) -> Generator[tuple[int, Any], None, None]:
    """Yield `(index, do(task))` for every task as it finishes; a `WorkerDiedError` if the process ended instead.

    `do` and the tasks are pickled, `do` must not raise. Closing the iterator ends the processes after they have removed
    their scratch files.
    """
    left = deque(range(len(tasks)))
    workers: list[_Worker] = []
    try:
        workers += [_Worker(do) for _ in range(min(processes, len(tasks)))]
        while left or any(w.task is not None for w in workers):
            for worker in workers:
                if worker.task is None and left:
                    worker.task = left.popleft()
                    with contextlib.suppress(OSError):  # it died at once: detected below
                        worker.pipe.send(tasks[worker.task])
            busy = {w.pipe: w for w in workers if w.task is not None}
            for pipe in connection.wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                index, result = worker.task, _received(worker)
                worker.task = None
                if isinstance(result, WorkerDiedError):
                    workers.remove(worker)
                    workers += [_Worker(do)] if left else []
                assert index is not None
                yield index, result
    finally:
        for worker in workers:
            if worker.task is not None:
                worker.process.terminate()
        for worker in workers:
            worker.end()


def _received(worker: _Worker) -> Any:
    try:
        return worker.pipe.recv()
    except (EOFError, OSError):
        worker.end()
        code = worker.process.exitcode
        if code is not None and code < 0:
            return WorkerDiedError(
                f"its process was ended by {signal.Signals(-code).name}; out of memory, perhaps: try --jobs 1"
            )
        return WorkerDiedError(f"its process ended with exit code {code}; run this source alone to see why")


def _serve(pipe: connection.Connection, do: Callable[[Any], Any]) -> None:
    """Run in the process: SIGTERM raises, so that scratch files are removed; the parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _unwind)
    with contextlib.suppress(EOFError, OSError):  # the parent closed the pipe: no more tasks
        while True:
            pipe.send(do(pipe.recv()))


def _unwind(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_IGN)  # for the whole group it arrives twice, once from the parent
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Start processes that ignore Ctrl-C from their first moment. Only the main thread can set this."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
