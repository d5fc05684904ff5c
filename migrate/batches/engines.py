"""A batch on machines of one's own: on any `concurrent.futures.Executor`, such as Dask's.

Workers share the file system with the caller. An engine that loses a worker does that worker's tasks again, and may do
so with a finished one whose result was lost on the way. So each item leaves a receipt next to the targets, and a task
that finds the receipt of an item returns it.
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
"""Of the checkpoints of one task: small ones go together, as each task costs a message there and back."""
ITEM_BYTES = 4 << 20
"""What migrating a small checkpoint costs other than its bytes, in bytes of a large one."""
Do = Callable[[Job, bool], BatchItem]
"""Migrates one source; with True, one that may have been begun before."""


@contextlib.contextmanager
def connected(url: str) -> Iterator[Executor]:
    """The executor that a URL names: `dask://HOST:PORT` is that of a Dask scheduler.

    Raises:
      HyperparameterError: no such engine. UnsupportedError: distributed is not installed, or nothing answers there.
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
    """`(index, result)` of every job, as they are done, the largest first.

    Closing the iterator takes back what has not begun.

    Args:
      executor: its processes have this version of dtopt, and `into` and the sources under the same names.
      do: what can be pickled.
      sizes: bytes of the source of each job.
      into: folder of the targets, where receipts are kept meanwhile; None if nothing is written, or behind a URL.
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
                except Exception as error:  # of the engine: what goes wrong with an item is in its result
                    results = [_given_up(jobs[i], error, _receipt(receipts, i)) for i in task]
                yield from zip(task, results, strict=True)
        finally:
            for future in futures:
                future.cancel()


def size_of(job: Job) -> int:
    """Bytes of a source's files; 0 where there is nothing to read."""
    try:
        return sum(identity[2] for identity in open_source(job.source).files.values())
    except (DtoptError, OSError):
        return 0


def divided(sizes: Sequence[int]) -> list[list[int]]:
    """Indices in tasks of about TASK_BYTES, the largest first, so that none of them is alone at the end."""
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
    """In a worker: what became of each job of a task."""
    here = release.version()
    if here != version:
        raise UnsupportedError(f"the worker has dtopt {here} and the caller {version}; install the same one on both")
    return [_once(do, job, _receipt(receipts, index)) for job, index in zip(jobs, indices, strict=True)]


def _once(do: Do, job: Job, receipt: str) -> BatchItem:
    """Do a job unless its receipt is there. One that was begun before may have a target, which stays if it is whole."""
    if not receipt:
        return do(job, urls.is_url(job.dest))
    if (done := _read(receipt)) is not None:
        return done
    begun = os.path.exists(f"{receipt}.begun")
    with open(f"{receipt}.begun", "wb"):
        pass
    result = do(job, begun)
    if result.status == FAILED and (done := _read(receipt)) is not None:
        return done  # another worker, taken for lost, was quicker
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
