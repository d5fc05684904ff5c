"""Run a batch on your own machines: on any `concurrent.futures.Executor`, such as Dask's.

Workers share the file system with the caller. If an engine loses a worker, it repeats that worker's tasks, sometimes
even a finished one whose result was lost. So each item writes a receipt next to the targets, and a task that finds an
item's receipt returns it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import replace

import msgspec

from migrate.batches.naming import Job
from migrate.batches.results import FAILED, BatchItem
from migrate.bytes.atomic import scratch_folder
from migrate.bytes.source import open_source
from optim import release
from optim.bytes import files, urls
from optim.errors import DtoptError, HyperparameterError, UnsupportedError

TASK_BYTES = 64 << 20
"""Bytes of the checkpoints of one task: small ones are grouped, because each task costs two messages."""
ITEM_BYTES = 4 << 20
"""Fixed cost of migrating a small checkpoint, in bytes of a large one."""
Do = Callable[[Job, bool], BatchItem]
"""Migrates one source; with True, one that may have been begun before."""


@contextlib.contextmanager
def connected(url: str) -> Iterator[Executor]:
    """The executor of a URL: `dask://HOST:PORT` is that of a Dask scheduler.

    Raises:
      HyperparameterError: an unknown engine. UnsupportedError: distributed is not installed, or nothing answers
        there.
    """
    scheme, _, address = url.partition("://")
    if scheme != "dask" or not address:
        raise HyperparameterError(f"engine is {url!r}; give a Dask scheduler, dask://HOST:PORT")
    try:
        from distributed import Client
    except ImportError as error:
        raise UnsupportedError("--engine dask:// needs distributed: pip install distributed") from error
    try:
        client = Client(f"tcp://{address}", set_as_default=False)
    except (OSError, ValueError) as error:
        text = f"no Dask scheduler answers at {address} ({error}); start one with: dask scheduler"
        raise UnsupportedError(text) from error
    with client:
        yield client.get_executor(pure=False)


def in_executor(
    executor: Executor, do: Do, jobs: Sequence[Job], sizes: Sequence[int], into: str | None
) -> Generator[tuple[int, BatchItem], None, None]:
    """Yield `(index, result)` of every job as it finishes, largest first.

    Closing the iterator cancels jobs that have not begun.

    Args:
      executor: its processes have this version of dtopt, and `into` and the sources under the same names.
      do: can be pickled.
      sizes: bytes of the source of each job.
      into: folder of the targets and temporary receipts; None if nothing is written, or for a URL.
    """
    jobs = [replace(job, source=files.absolute(job.source), dest=files.absolute(job.dest)) for job in jobs]
    with contextlib.nullcontext() if into is None else scratch_folder(os.path.join(into, "batch")) as receipts:
        tasks = divided(sizes)
        futures = {executor.submit(do_task, do, [jobs[i] for i in t], t, receipts, release.version()): t for t in tasks}
        try:
            for future in as_completed(futures):
                task = futures[future]
                try:
                    results = future.result()
                except Exception as error:  # an engine's error: those of items are in their results
                    results = [_given_up(jobs[i], error, _receipt(receipts, i)) for i in task]
                yield from zip(task, results, strict=True)
        finally:
            for future in futures:
                future.cancel()


def size_of(job: Job) -> int:
    """Bytes of a source's files; 0 if nothing can be read."""
    try:
        return sum(identity[2] for identity in open_source(job.source).files.values())
    except (DtoptError, OSError):
        return 0


def divided(sizes: Sequence[int]) -> list[list[int]]:
    """Group indices into tasks of about TASK_BYTES, largest first, so that no large one runs alone at the end."""
    tasks: list[list[int]] = []
    room = 0
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        cost = sizes[index] + ITEM_BYTES
        if not tasks or cost > room:
            tasks.append([])
            room = TASK_BYTES
        tasks[-1].append(index)
        room -= cost
    return tasks


def do_task(do: Do, jobs: Sequence[Job], indices: Sequence[int], receipts: str | None, version: str) -> list[BatchItem]:
    """Run in a worker: return the result of each job of a task."""
    here = release.version()
    if here != version:
        raise UnsupportedError(f"the worker has dtopt {here} and the caller {version}; install the same one on both")
    return [_once(do, job, _receipt(receipts, index)) for job, index in zip(jobs, indices, strict=True)]


def _once(do: Do, job: Job, receipt: str) -> BatchItem:
    """Do a job unless its receipt exists. A job that was begun before may have a target, which stays if complete."""
    if not receipt:
        return do(job, urls.is_url(job.dest))
    if (done := _read(receipt)) is not None:
        return done
    begun = os.path.exists(f"{receipt}.begun")
    with open(f"{receipt}.begun", "wb"):
        pass
    result = do(job, begun)
    if result.status == FAILED and (done := _read(receipt)) is not None:
        return done  # another worker, assumed lost, was faster
    part = f"{receipt}.{secrets.token_hex(4)}"
    with open(part, "wb") as file:
        file.write(msgspec.json.encode(result))
    os.replace(part, receipt)
    return result


def _receipt(receipts: str | None, index: int) -> str:
    return "" if receipts is None else os.path.join(receipts, str(index))


def _read(receipt: str) -> BatchItem | None:
    try:
        with open(receipt, "rb") as file:
            return msgspec.json.decode(file.read(), type=BatchItem)
    except FileNotFoundError:
        return None


def _given_up(job: Job, error: Exception, receipt: str) -> BatchItem:
    text = f"the engine gave it up ({type(error).__name__}: {error}); run this source alone to see why"
    return _read(receipt) or BatchItem(job.source, job.dest, FAILED, text)
