"""Migrate many checkpoints: a broken one does not stop the others, and an interrupted run can be continued."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from migrate import surfaces
from migrate.batches import engines, naming
from migrate.batches.results import FAILED, MIGRATED, NOT_REACHED, PLANNED, REFUSED, SKIPPED, BatchItem, BatchReport
from migrate.batches.whole import HINTS, PARTIAL, is_whole
from migrate.batches.workers import WorkerDiedError, in_processes
from migrate.claims import asked_by
from migrate.conversion import convert, targets
from migrate.errors import StrictError
from optim.bytes import files, urls
from optim.errors import DtoptError, HyperparameterError
from optim.interrupts import interruption

_OPTIONS = {*HINTS, *PARTIAL, "strict", "overwrite", "dry_run"}


class BatchInterrupted(KeyboardInterrupt):
    """Ctrl-C during a batch. Finished targets are kept; `report` lists them, and `resume` continues."""

    def __init__(self, report: BatchReport):
        super().__init__("interrupted: finished targets are kept; --resume continues from there")
        self.report = report


def batch(
    sources: Sequence[convert.PathLike],
    into: convert.PathLike,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    resume: bool = False,
    shard: tuple[int, int] | None = None,
    every: bool = False,
    to: str = "slots",
    order: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> BatchReport:
    """Migrate every source to its own target in the folder `into`.

    A target is named like its source without suffix; sources with equal names get their folders in front (`a/model.h5`
    and `b/model.h5` become `a-model` and `b-model`). Names depend only on the list of sources, so the same list gives
    the same names in every run and every shard. A folder that is not a checkpoint means those directly in it; one with
    several TensorFlow checkpoints is refused without `every`.

    Args:
      jobs: processes at a time. With more than one, a script that calls this needs `if __name__ == "__main__":`, as
        every use of `multiprocessing` does.
      executor: does the work instead, in processes that have the sources and `into` under the same names; it is not
        shut down. Repeating the work of a lost worker is the executor's task: Dask does it.
      resume: skip targets that exist and equal a new migration of their source, bit for bit; migrate the others.
      shard: (i, n), the i-th of n parts of the sources, from 1: for n machines with one list.
      every: use each checkpoint of a folder and its subfolders: all epochs of a run, whole trees.
      to, order: the target format, as for `migrate_checkpoint`.
      progress: called with (sources done, sources in all).
      options: as for `migrate_checkpoint`, the same for all sources.

    Raises:
      HyperparameterError: an option is wrong. Errors of single sources are in the report.
      BatchInterrupted: a KeyboardInterrupt with the report so far.
    """
    targets.check_target(to, order)
    unknown = set(options) - _OPTIONS
    if unknown:
        raise TypeError(f"batch() has no option {', '.join(sorted(unknown))}")
    if jobs < 1:
        raise HyperparameterError(f"jobs is {jobs}; give the number of processes, from 1 on")
    if jobs > 1 and executor is not None:
        raise HyperparameterError("give jobs or executor, not both: an executor has its own processes")
    with files.listings_kept():
        todo = _part(naming.jobs(sources, os.fspath(into), targets.ENDINGS.get(to, ""), every=every), shard)
        sizes = [engines.size_of(job) for job in todo] if jobs > 1 or executor is not None else []
    do = partial(migrate_one, surface=surfaces.current.get(), resume=resume, to=to, order=order, **options)
    if executor is None:
        results = _results(do, todo, jobs, sizes)
    else:
        here = not urls.is_url(os.fspath(into)) and not options.get("dry_run")
        results = engines.in_executor(
            executor, partial(migrate_again, do), todo, sizes, os.fspath(into) if here else None
        )
    return _collected(results, todo, progress)


def _collected(
    results: Generator[tuple[int, BatchItem], None, None],
    todo: Sequence[naming.Job],
    progress: Callable[[int, int], None] | None,
) -> BatchReport:
    """Build the report as results arrive; after an interrupt inside BatchInterrupted."""
    items = [BatchItem(job.source, job.dest, NOT_REACHED) for job in todo]
    done = 0
    try:
        for index, item in results:
            items[index] = item
            done += 1
            if progress is not None:
                progress(done, len(items))
    except KeyboardInterrupt:
        results.close()
        raise BatchInterrupted(BatchReport(tuple(items))) from None
    return BatchReport(tuple(items))


def _part(todo: list[naming.Job], shard: tuple[int, int] | None) -> list[naming.Job]:
    if shard is None:
        return todo
    number, parts = shard
    if not 1 <= number <= parts:
        raise HyperparameterError(f"shard {number}/{parts} is not one of 1/{parts} to {parts}/{parts}")
    return todo[number - 1 :: parts]


def _results(
    do: Callable[[naming.Job], BatchItem], todo: Sequence[naming.Job], jobs: int, sizes: Sequence[int]
) -> Generator[tuple[int, BatchItem], None, None]:
    if jobs == 1 or len(todo) < 2:
        yield from ((index, do(job)) for index, job in enumerate(todo))
        return
    largest_first = sorted(range(len(todo)), key=lambda i: -sizes[i])
    with closing(in_processes(do, [todo[i] for i in largest_first], jobs)) as results:
        for place, result in results:
            job = todo[index := largest_first[place]]
            died = isinstance(result, WorkerDiedError)
            yield index, BatchItem(job.source, job.dest, FAILED, str(result)) if died else result


def migrate_again(do: partial[BatchItem], job: naming.Job, begun: bool) -> BatchItem:
    """Migrate a source that a lost worker may have begun, or even finished."""
    if not begun:
        return do(job)
    item = do(job, resume=True)
    return replace(item, status=MIGRATED) if item.status == SKIPPED and not do.keywords["resume"] else item


def migrate_one(job: naming.Job, *, surface: str = surfaces.PYTHON, **options: Any) -> BatchItem:
    """Migrate one source of a batch; any error is in the result, worded for a surface."""
    with surfaces.speaking(surface):
        return _migrated(job, **options)


def _migrated(job: naming.Job, *, resume: bool, **options: Any) -> BatchItem:
    try:
        if job.problem is not None:
            raise job.problem
        if resume and files.exists(job.dest) and is_whole(job.source, job.dest, options):
            return BatchItem(job.source, job.dest, SKIPPED)
        report = convert.migrate_checkpoint(job.source, job.dest, **options)
        status, asked = MIGRATED if report.written else PLANNED, (report.confirm_command, report.choice_commands)
        return BatchItem(job.source, job.dest, status, "", report, report.questions, *asked)
    except StrictError as error:
        return BatchItem(job.source, job.dest, REFUSED, error.text, questions=asked_by(error))
    except Exception as error:  # even a defect in a reader must not stop the other sources
        if (stop := interruption(error)) is not None:
            raise stop from error
        if isinstance(error, DtoptError):
            return BatchItem(job.source, job.dest, FAILED, error.text, questions=asked_by(error))
        problem = (
            f"{type(error).__name__}: {error}; please report it, with the output of `dtopt --debug migrate inspect`"
        )
        return BatchItem(job.source, job.dest, FAILED, problem)


migrate_batch = batch
