"""Measures the roofs alone: how fast this machine moves memory in place, in cache and out of it, on one thread and all.

The patterns are those of `bench.roof`, which run among the peers of every step. No framework is needed.
"""

from __future__ import annotations

import datetime
import random
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from bench import clock, environment, stats
from bench.case import Case
from bench.errors import OptionError
from bench.layouts import MeshShape
from bench.peer import Peer, Session
from bench.process import allowed_cpus
from bench.records import Roof, Sample
from bench.results import Result
from bench.roof import ROOFS
from bench.roof_row import Row
from bench.runner import BUSY_LOAD

SIZES = ("one16m", "many-small")
"""Workloads whose number of elements the arrays have: 16M, in main memory; 64k, in cache."""

WARM_UP_SECONDS = 1.0
UNSTEADY_IQR = 0.25


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
    allowed = len(allowed_cpus())
    if threads is not None and threads > allowed:
        raise OptionError(f"{threads} threads are asked for, and this process may use {allowed} CPUs")
    most = threads or allowed
    context = environment.describe(most)
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
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
    context |= {
        "command": command,
        "rounds": rounds,
        "order_seed": seed,
        "started": started,
        "load_after": environment.load(),
        "busy": context["load"] > BUSY_LOAD,
    }
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
        warnings=(f"samples spread by {spread:.0%}: disturbed",) if spread > UNSTEADY_IQR else (),
    )
