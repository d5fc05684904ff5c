"""Measures the roofs alone: how fast this machine moves memory in place, in cache and out of it, on one thread and all.

The patterns are those of `bench.roof.patterns`, which run among the peers of every step. No framework is needed.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.cases.case import Case
from bench.cases.layouts import MeshShape
from bench.errors import ResultsError
from bench.measuring import clock, environment, stats
from bench.measuring.process import threads_of
from bench.peers.peer import Peer, Session
from bench.results.document import Result
from bench.results.records import Roof, Sample
from bench.roof.patterns import ROOFS
from bench.roof.row import Row

SIZES = ("one16m", "many-small")
"""Workloads whose number of elements the arrays have: 16M, in main memory; 64k, in cache."""

WARM_UP_SECONDS = 1.0


@dataclass
class _Measured:
    peer: Peer
    bytes_per_element: int
    case: Case
    session: Session
    steps: int
    samples: list[Sample]

    @property
    def bytes_per_step(self) -> int:
        return self.bytes_per_element * self.case.elements


def run(
    threads: int | None = None,
    rounds: int = 9,
    seed: int = 0,
    command: str = "",
    progress: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> Result:
    """Measures each pattern at each size, on one thread and on `threads` (all allowed CPUs by default).

    Raises: OptionError (more threads than CPUs).
    """
    most = threads_of(threads)
    log = environment.Log(command, most)
    measured: list[_Measured] = []
    interrupted = False
    try:
        for size in SIZES:
            for count in sorted({1, most}, reverse=True):
                measured += [_prepare(peer, per_element, size, count) for peer, per_element in ROOFS]
        _sample(measured, rounds, random.Random(seed), progress)
    except KeyboardInterrupt:
        interrupted = True
    complete = [one for one in measured if one.samples]
    context = log.context(rounds=rounds, order_seed=seed)
    roofs = tuple(_roof(one) for one in complete if one.case.workload == SIZES[0] and one.case.threads == most)
    return Result(context, roofs, tuple(_row(one, rounds, seed) for one in complete), interrupted, kind="roof")


def _prepare(peer: Peer, bytes_per_element: int, size: str, threads: int) -> _Measured:
    case = Case(size, "adam", MeshShape((("model", 1),)), "replicated", threads=threads)
    session = peer.prepare(case)
    warm = clock.warm_up(session, WARM_UP_SECONDS)
    return _Measured(peer, bytes_per_element, case, session, clock.steps_per_sample(warm.step_seconds), [])


def _sample(
    measured: Sequence[_Measured], rounds: int, order: random.Random, progress: Callable[[str, int, int], None]
) -> None:
    """One sample of each per round, in random order, so that slow phases of the machine hit all alike."""
    for number in range(rounds):
        places = list(measured)
        order.shuffle(places)
        for position, one in enumerate(places):
            progress(f"round {number + 1}: {one.peer.name}", number * len(places) + position, rounds * len(places))
            seconds = clock.sample(one.session, one.steps)
            one.samples.append(Sample(0, number, position, one.steps, seconds))


def _best(one: _Measured) -> float:
    return one.bytes_per_step / min(sample.seconds for sample in one.samples)


def _roof(one: _Measured) -> Roof:
    case = one.case
    return Roof(case.workload, case.optimizer, one.peer.name, one.bytes_per_step, _best(one), tuple(one.samples))


def _row(one: _Measured, rounds: int, seed: int) -> Row:
    seconds = [sample.seconds for sample in one.samples]
    arrays = 2 if one.bytes_per_element == 12 else 4
    working_set = arrays * one.case.elements * 4
    spread = stats.relative_iqr(seconds)
    words = ["dtopt", "bench", "roof", "--threads", str(one.case.threads), "--rounds", str(rounds), "--seed", str(seed)]
    return Row(
        pattern=one.peer.name.removeprefix("roof: "),
        threads=one.case.threads,
        working_set=working_set,
        regime=environment.regime(working_set, environment.last_level_cache()),
        bytes_per_step=one.bytes_per_step,
        samples=tuple(one.samples),
        median=median(seconds),
        mad=stats.median_absolute_deviation(seconds),
        bytes_per_second=_best(one),
        rerun=shlex.join(words),
        warnings=(f"samples spread by {spread:.0%}: disturbed",) if spread > stats.VERY_UNSTEADY_IQR else (),
    )


def speed(result: Result, name: str) -> float:
    """Bytes per second of the best roof in a result; `name` is of its file. Raises: ResultsError."""
    if not result.roofs:
        raise ResultsError(f"{name} holds no roof; `dtopt bench roof --output FILE` measures one")
    return max(one.bytes_per_second for one in result.roofs)
