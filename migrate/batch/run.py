"""Many checkpoints at once: one that is broken stops no other, and a run that was interrupted is taken up again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from migrate.batch import model_target, naming
from migrate.batch.workers import WorkerDiedError, in_processes
from migrate.bytes.arrays import LazyArray
from migrate.errors import StrictError
from migrate.lists.planning import for_list, plan
from migrate.operations import convert
from migrate.operations.hints import Hints
from migrate.readers import weight_list
from migrate.state import OptimizerState
from optim.errors import DtoptError, HyperparameterError

MIGRATED, SKIPPED, REFUSED, FAILED, NOT_REACHED = "migrated", "skipped", "refused", "failed", "not reached"
BROKEN_EXIT, REFUSED_EXIT = 3, 1


@dataclass(frozen=True)
class BatchItem:
    """What became of one source.

    `status` is `migrated`; `skipped`, with `resume` and the target whole; `refused`, by `strict`; `failed`; or `not
    reached`, when the run was interrupted. `problem` says why, where it is `refused` or `failed`.
    """

    source: str
    dest: str
    status: str
    problem: str = ""
    report: convert.Report | None = None


@dataclass(frozen=True)
class BatchReport:
    """What became of every source, in the order given."""

    items: tuple[BatchItem, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many items have each status; those that none has are left out."""
        every = (MIGRATED, SKIPPED, REFUSED, FAILED, NOT_REACHED)
        found = {status: sum(item.status == status for item in self.items) for status in every}
        return {status: count for status, count in found.items() if count}

    @property
    def exit_code(self) -> int:
        """3 if any source failed, else 1 if `strict` refused any, else 0."""
        counts = self.counts
        return BROKEN_EXIT if FAILED in counts else REFUSED_EXIT if REFUSED in counts else 0

    def to_dict(self) -> dict[str, Any]:
        return {"counts": self.counts, "items": [asdict(item) for item in self.items]}


class BatchInterrupted(KeyboardInterrupt):
    """Ctrl-C during a batch. What was migrated is kept; `report` says what, and `resume` goes on from there."""

    def __init__(self, report: BatchReport):
        super().__init__("interrupted")
        self.report = report


def migrate_batch(
    sources: Sequence[convert.PathLike],
    into: convert.PathLike,
    *,
    jobs: int = 1,
    resume: bool = False,
    shard: tuple[int, int] | None = None,
    every: bool = False,
    to: str = "slots",
    order: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> BatchReport:
    """Migrate every source to a target of its own in the folder `into`.

    A target is called as its source without suffix; sources of one name get their folders in front (`a/model.h5` and
    `b/model.h5` become `a-model` and `b-model`). Names depend on the list of sources alone, so that the same list gives
    the same names in every run and every shard. A folder that is no checkpoint stands for those directly in it; one
    with several TensorFlow checkpoints is refused without `every`.

    Args:
      jobs: processes at a time. With more than one, a script that calls this needs `if __name__ == "__main__":`, as
        every use of `multiprocessing` does.
      resume: leave targets that are there and equal to what their source gives, bit for bit; migrate the others.
      shard: (i, n), the i-th of n parts of the sources, from 1: for n machines with one list.
      every: take each checkpoint of a folder and of the folders in it: all epochs of a run, whole trees.
      to, order: the target format, as for `migrate_checkpoint`.
      progress: called with (sources done, sources in all).
      options: as for `migrate_checkpoint`, the same for all sources.

    Raises:
      HyperparameterError: an option is wrong. Errors of single sources are in the report.
      BatchInterrupted: a KeyboardInterrupt with the report so far.
    """
    convert.check_target(to, order)
    unknown = set(options) - _OPTIONS
    if unknown:
        raise TypeError(f"migrate_batch() has no option {', '.join(sorted(unknown))}")
    if jobs < 1:
        raise HyperparameterError(f"jobs is {jobs}; give the number of processes, from 1 on")
    todo = _part(naming.jobs(sources, os.fspath(into), SUFFIXES.get(to, ""), every=every), shard)
    do = partial(migrate_one, resume=resume, to=to, order=order, **options)
    items = [BatchItem(job.source, job.dest, NOT_REACHED) for job in todo]
    done = 0
    try:
        for index, item in _results(do, todo, jobs):
            items[index] = item
            done += 1
            if progress is not None:
                progress(done, len(items))
    except KeyboardInterrupt:
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
    do: Callable[[naming.Job], BatchItem], todo: Sequence[naming.Job], jobs: int
) -> Iterator[tuple[int, BatchItem]]:
    if jobs == 1 or len(todo) < 2:
        yield from ((index, do(job)) for index, job in enumerate(todo))
        return
    results = in_processes(do, todo, jobs)
    try:
        for index, result in results:
            job = todo[index]
            yield (
                index,
                BatchItem(job.source, job.dest, FAILED, str(result)) if isinstance(result, WorkerDiedError) else result,
            )
    finally:
        results.close()  # type: ignore[attr-defined]


def migrate_one(job: naming.Job, *, resume: bool, **options: Any) -> BatchItem:
    """One source of a batch; whatever goes wrong with it is in the result."""
    try:
        if job.problem is not None:
            raise job.problem
        if resume and os.path.lexists(job.dest) and _is_whole(job, options):
            return BatchItem(job.source, job.dest, SKIPPED)
        report = convert.migrate_checkpoint(job.source, job.dest, **options)
        return BatchItem(job.source, job.dest, MIGRATED, report=report)
    except StrictError as error:
        return BatchItem(job.source, job.dest, REFUSED, str(error))
    except DtoptError as error:
        return BatchItem(job.source, job.dest, FAILED, str(error))
    except Exception as error:  # the edge of one source: even a defect in a reader must not stop the others
        problem = f"{type(error).__name__}: {error}; please report it, with what `dtopt --debug migrate inspect` says"
        return BatchItem(job.source, job.dest, FAILED, problem)


def _is_whole(job: naming.Job, options: Mapping[str, Any]) -> bool:
    """Whether the target is what migrating the source would write. A strict run asks for more than a whole target."""
    hints = {key: options[key] for key in _HINTS if key in options}
    state = convert.read(job.source, **hints)
    if options["to"] == "list":
        return _is_whole_list(job.dest, for_list(state, options["order"]), options)
    if options["to"] in ("keras", "tf-keras"):
        return _is_whole_model(job.dest, state, options)
    if options.get("strict") and state.fidelity != "exact":
        return False
    try:
        return _same_state(convert.read(job.dest, format="slots"), state)
    except DtoptError:
        return False


def _is_whole_model(dest: str, state: OptimizerState, options: Mapping[str, Any]) -> bool:
    writer = model_target.writer_of("keras" if options["to"] == "keras" else "h5")
    if options.get("strict") and writer.converted(state)[0].fidelity != "exact":
        return False
    try:
        return not any(model_target.differences(state, convert.read(dest), writer))
    except (DtoptError, OSError):
        return False


def _is_whole_list(dest: str, state: OptimizerState, options: Mapping[str, Any]) -> bool:
    if options.get("strict") and state.fidelity != "exact":
        return False
    wanted = plan(state, options["order"]).arrays
    try:
        found = [array for _, array in weight_list.read(dest).weights or ()]
        same = [(a.shape, a.dtype) for a in found] == [(a.shape, a.dtype) for a in wanted]
        return same and all(map(_same_array, found, wanted))
    except (DtoptError, OSError):
        return False


SUFFIXES = {"list": ".npz", "keras": ".keras", "tf-keras": ".h5"}
"""Of the targets that are single files."""
_HINTS = tuple(Hints.__annotations__)
_OPTIONS = {*_HINTS, "strict", "overwrite", "dry_run"}


def _same_state(a: OptimizerState, b: OptimizerState) -> bool:
    return _described(a) == _described(b) and all(map(_same_array, _arrays(a), _arrays(b)))


def _described(state: OptimizerState) -> str:
    """Everything but the arrays' values, as text."""
    arrays = [(a.shape, a.dtype) for a in _arrays(state)]
    variables = [(v.name, v.shape, v.dtype, bool(v.trainable), v.array is not None) for v in state.variables]
    slots = sorted((slot, sorted(owners)) for slot, owners in state.slots.items())
    config = {"name": state.algorithm, **state.hyperparameters}
    scalars = {name: float(value) for name, value in state.scalars.items()}
    parts = [state.algorithm, config, state.iterations, scalars, variables, slots, sorted(state.unmapped), arrays]
    return json.dumps(parts, sort_keys=True)


def _arrays(state: OptimizerState) -> list[LazyArray]:
    slots = [state.slots[slot][name] for slot in sorted(state.slots) for name in sorted(state.slots[slot])]
    variables = [v.array for v in state.variables if v.array is not None]
    return [*slots, *variables, *(state.unmapped[name] for name in sorted(state.unmapped))]


def _same_array(a: LazyArray, b: LazyArray) -> bool:
    one, other = np.asarray(a.load()), np.asarray(b.load())
    if one.dtype.hasobject or other.dtype.hasobject:
        return bool(np.array_equal(one, other))
    little = [x.astype(x.dtype.newbyteorder("<"), copy=False) for x in (one, other)]
    return little[0].tobytes() == little[1].tobytes()
