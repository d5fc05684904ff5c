"""Train every problem with every optimizer, learning rate and seed on every peer and mesh, and make rows of the
results.

Peers have one process each, alive together. The same seed and learning rate runs on all of them in random order before
the next, so that slow moments of the machine affect all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isinf
from statistics import median
from typing import Any

from bench import peers
from bench.cases import layouts
from bench.cases.algorithms import algorithm, shown
from bench.errors import OptionError, UnknownNameError
from bench.measuring import environment, stats
from bench.measuring.process import (
    Child,
    UnsupportedCaseError,
    Worker,
    WorkerError,
    allowed_cpus,
    fresh,
    threads_of,
    worker_environment,
)
from bench.peers.peer import Peer
from bench.results.document import Result
from bench.results.records import read
from bench.train.problems import Problem, problem
from bench.train.row import Row, Run
from bench.train.worker import TrainingCase

GRID = (0.1, 10**-0.5, 1.0, 10**0.5, 10.0)
"""Learning rates to try, as fractions of the optimizer's default."""


Launch = Callable[[Peer, TrainingCase], Worker]


def start(peer: Peer, case: TrainingCase) -> Worker:
    """Start the peer in its own process."""
    cpus = allowed_cpus()[: case.threads]
    hello = {"case": case.to_message(), "module": peer.module, "peer": peer.name, "cpus": cpus}
    return Child("bench.train.worker", hello, fresh(worker_environment(case.threads)))


@dataclass
class _Place:
    """A peer on a mesh, with its results so far."""

    peer: Peer
    case: TrainingCase
    worker: Worker | None = None
    status: str = "ok"
    reason: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    runs: dict[tuple[str, str, float], list[Run]] = field(default_factory=dict)

    def out(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason
        if self.worker is not None:
            self.worker.stop()
            self.worker = None


@dataclass(frozen=True)
class _Cell:
    """One problem with an optimizer and a learning rate."""

    problem: Problem
    optimizer: str
    learning_rate: float

    @property
    def text(self) -> str:
        """The optimizer as `-o` takes it."""
        return f"{self.optimizer}:learning_rate={self.learning_rate!r}"

    @property
    def key(self) -> tuple[str, str, float]:
        return self.problem.name, self.optimizer, self.learning_rate


def run(
    *,
    problems: Sequence[str] = (),
    optimizers: Sequence[str] = (),
    learning_rates: Sequence[float] = (),
    peer: Sequence[str] = (),
    mesh: Sequence[str] = (),
    layout: str = "megatron",
    device: str = "auto",
    seeds: int = 6,
    threads: int | None = None,
    timeout: float = 300.0,
    command: str = "",
    launch: Launch = start,
    progress: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> Result:
    """Measure the whole grid. `seeds` counts the seeds, from 0; `timeout` is for one run.

    Raises: UnknownNameError; OptionError; UnsupportedError (this machine lacks the device).
    """
    cells = _cells(problems or ("teacher",), optimizers or ("adam",), learning_rates)
    places = _places(peer or ("optim-local",), mesh or ("1",), layout, environment.find_device(device), threads)
    log = environment.Log(command, places[0].case.threads)
    interrupted = False
    try:
        _run(cells, places, seeds, timeout, launch, progress)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        for place in places:
            if place.worker is not None:
                place.worker.stop()
    rows = [_row(place, cell, seeds) for cell in cells for place in places]
    return Result(log.context(rounds=seeds), (), tuple(_with_ratios(_with_best(rows))), interrupted, kind="train")


def _cells(problems: Sequence[str], optimizers: Sequence[str], rates: Sequence[float]) -> list[_Cell]:
    cells = []
    for name in problems:
        for text in optimizers:
            known = algorithm(text)
            if "learning_rate=" in text:
                raise OptionError(f"{text}: give learning rates with --learning-rate")
            default = known.hyperparameters["learning_rate"]
            grid = rates or [float(f"{default * part:.3g}") for part in GRID]
            cells += [_Cell(problem(name), known.text, rate) for rate in grid]
    return cells


def _places(names: Sequence[str], mesh: Sequence[str], layout: str, device: str, threads: int | None) -> list[_Place]:
    if layout not in layouts.RULES:
        raise UnknownNameError(f"no layout rule is called {layout!r}; there are: {', '.join(layouts.RULES)}")
    meshes = [layouts.parse_mesh(text) for text in mesh]
    places = []
    for one in peers.find(tuple(names)):
        for shape in meshes if one.on_mesh else [layouts.parse_mesh("1")]:
            case = TrainingCase("teacher", "adam", shape, layout, device=device, threads=threads_of(threads))
            places.append(_Place(one, case))
    return places


def _run(
    cells: Sequence[_Cell],
    places: list[_Place],
    seeds: int,
    timeout: float,
    launch: Launch,
    progress: Callable[[str, int, int], None],
) -> None:
    order = random.Random(0)
    for place in places:
        reason = place.peer.unavailable(replace(place.case, workload=cells[0].problem.name, optimizer=cells[0].text))
        if reason:
            place.out("skipped", reason)
        else:
            place.worker = launch(place.peer, place.case)
            place.worker.request("versions")
    for place in places:
        if place.worker is not None:
            _try(place, lambda place=place: _started(place, timeout))  # type: ignore[misc]
    parts = len(cells) * seeds
    for number, cell in enumerate(cells):
        for seed in range(seeds):
            progress(f"{cell.problem.name} {cell.text}, seed {seed}", number * seeds + seed, parts)
            for place in order.sample(places, len(places)):
                if place.worker is not None:
                    _try(place, lambda place=place: _train(place, cell, seed, timeout))  # type: ignore[misc] # noqa: B023


def _try(place: _Place, act: Callable[[], None]) -> None:
    try:
        act()
    except UnsupportedCaseError as error:
        place.out("skipped", str(error))
    except WorkerError as error:
        place.out("failed", str(error))


def _started(place: _Place, timeout: float) -> None:
    assert place.worker is not None
    place.worker.answer(timeout)  # that the process has started
    place.versions = place.worker.answer(timeout)


def _train(place: _Place, cell: _Cell, seed: int, timeout: float) -> None:
    assert place.worker is not None
    place.worker.request("train", name=cell.problem.name, optimizer=cell.text, seed=seed)
    members = place.worker.answer(timeout)
    result = read(Run, {**members, "curve": list(members["curve"])}, "the answer of a worker")
    place.runs.setdefault(cell.key, []).append(result)


def _row(place: _Place, cell: _Cell, seeds: int) -> Row:
    runs = tuple(place.runs.get(cell.key, ()))
    status = "ok" if runs else "interrupted" if place.status == "ok" else place.status
    reason = None if runs else place.reason or "ended by Ctrl-C before its first run"
    case = place.case
    steps = [inf if run.steps is None else float(run.steps) for run in runs]
    seconds = [inf if run.seconds is None else run.seconds for run in runs]
    estimate = stats.estimate(steps) if steps else None
    row = Row(
        problem=cell.problem.name,
        optimizer=cell.optimizer,
        learning_rate=cell.learning_rate,
        peer=place.peer.name,
        mesh=str(case.mesh),
        layout=case.layout,
        device=case.device,
        threads=case.threads,
        problem_version=cell.problem.version,
        target=cell.problem.target,
        budget=cell.problem.budget,
        status=status,
        reason=reason,
        rerun="",
        source=cell.problem.source(),
        runs=runs,
        reached=sum(run.steps is not None for run in runs),
        median_steps=_finite(estimate.median) if estimate else None,
        low_steps=estimate.low if estimate else None,
        high_steps=estimate.high if estimate else None,
        median_seconds=_finite(median(seconds)) if seconds else None,
        versions=place.versions,
    )
    return replace(row, rerun=_rerun(row, seeds))


def _finite(value: float) -> float | None:
    return None if isinf(value) else value


def _with_best(rows: Sequence[Row]) -> list[Row]:
    """Mark the learning rate with which most seeds reach the target, and of those the fastest."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.problem, row.optimizer, row.peer, row.mesh), []).append(row)
    best = {id(min(rows_, key=_rank)) for rows_ in groups.values()}
    return [replace(row, best=id(row) in best and row.status == "ok") for row in rows]


def _rank(row: Row) -> tuple[float, float, float]:
    ends = [run.curve[-1].value for run in row.runs if not run.diverged]
    return (inf if row.median_steps is None else row.median_steps, -row.reached, median(ends) if ends else inf)


def _with_ratios(rows: Sequence[Row]) -> list[Row]:
    """Add the ratio of the steps to those of the first peer and mesh that ran the same."""
    first: dict[tuple[Any, ...], Row] = {}
    rated = []
    for row in rows:
        key = (row.problem, row.optimizer, row.learning_rate)
        base = first.setdefault(key, row) if row.status == "ok" else None
        ratio = stats.paired_ratio(_steps(row), f"{base.peer} {base.mesh}", _steps(base)) if base else None
        rated.append(replace(row, ratio=ratio))
    return rated


def _steps(row: Row) -> dict[stats.Place, float]:
    return {(0, run.seed, 0): float(run.steps) for run in row.runs if run.steps}


def _rerun(row: Row, seeds: int) -> str:
    words = [
        "dtopt bench train",
        "--problem",
        row.problem,
        "-o",
        row.optimizer,
        "--learning-rate",
        shown(row.learning_rate),
    ]
    words += ["-p", row.peer, "--mesh", row.mesh, "--layout", row.layout, "--device", row.device]
    return " ".join([*words, "--seeds", str(seeds), "--threads", str(row.threads)])
