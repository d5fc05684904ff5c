"""Measure the memory bandwidth limit alone.

That is how fast this machine moves memory in place, in cache and out of it, on one thread and all, or how fast a GPU
copies its memory. The patterns are those of `bench.roof.patterns` and `bench.roof.device`, which run among the peers of
every step. No framework is needed.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from bench.cases.case import Case
from bench.cases.layouts import MeshShape
from bench.errors import OptionError
from bench.measuring import clock, environment, events, stats
from bench.measuring.process import threads_of
from bench.peers.peer import Session
from bench.results.document import Result
from bench.results.records import Roof, Sample
from bench.roof import device as gpus
from bench.roof.patterns import FLOAT32, ON_GPUS, ROOFS
from bench.roof.row import Row

SIZES = ("one16m", "many-small")
"""Workloads that set the number of elements of the arrays: 16M, in main memory; 64k, in cache."""

ELEMENTS_ON_GPU = (4 * gpus.ELEMENTS, gpus.ELEMENTS)
"""Bytes of each array on a GPU: 1 GiB, and 256 MiB as among the peers of steps."""

DEVICES = ("cpu", "gpu")
WARM_UP_SECONDS = 1.0


@dataclass
class _Measured:
    """A pattern at one size.

    Attributes: workload and optimizer of its `Roof`; arrays, of `elements` each.
    """

    name: str
    bytes_per_element: int
    workload: str
    optimizer: str
    elements: int
    arrays: int
    threads: int
    session: Session
    device: str = "cpu"
    cache: int | None = None
    steps: int = 1
    samples: list[Sample] = field(default_factory=list)

    @property
    def bytes_per_step(self) -> int:
        return self.bytes_per_element * self.elements


def run(
    threads: int | None = None,
    rounds: int = 9,
    seed: int = 0,
    command: str = "",
    progress: Callable[[str, int, int], None] = lambda what, done, of: None,
    device: str = "cpu",
) -> Result:
    """Measure each pattern at each size, on one thread and on `threads` (all allowed CPUs by default), or on a GPU.

    Raises: OptionError (more threads than CPUs, another device); NoDeviceError; UnsupportedError (an unusable driver,
    too little memory).
    """
    if device not in DEVICES:
        raise OptionError(f"--device {device!r}: the memory of {' and '.join(DEVICES)} can be measured")
    environment.find_device(device)
    most = threads_of(threads)
    log = environment.Log(command, most, device)
    measured: list[_Measured] = []
    interrupted, facts = False, {}
    try:
        for one in _on_gpu() if device == "gpu" else _on_cpu(most):
            warm = clock.warm_up(one.session, WARM_UP_SECONDS, least_seconds=clock.LEAST_WARM_UP.get(device, 0.0))
            one.steps = clock.steps_per_sample(warm.step_seconds)
            measured.append(one)
        _sample(measured, rounds, random.Random(seed), progress)
    except KeyboardInterrupt:
        interrupted = True
    if device == "gpu":
        facts = {"gpu": asdict(gpus.gpu()[1])}
    complete = [one for one in measured if one.samples]
    context = log.context(rounds=rounds, order_seed=seed, **facts)
    largest = max((one.elements for one in complete), default=0)
    roofs = tuple(
        _roof(one) for one in complete if one.elements == largest and (one.device == "gpu" or one.threads == most)
    )
    return Result(context, roofs, tuple(_row(one, rounds, seed) for one in complete), interrupted, kind="roof")


def _on_cpu(most: int) -> Iterator[_Measured]:
    for size in SIZES:
        for count in sorted({1, most}, reverse=True):
            for peer, per_element in ROOFS:
                case = Case(size, "adam", MeshShape((("model", 1),)), "replicated", threads=count)
                cache, arrays = environment.last_level_cache(), 2 if per_element == 12 else 4
                text = case.workload, case.optimizer
                prepared = peer.prepare(case)
                yield _Measured(peer.name, per_element, *text, case.elements, arrays, count, prepared, "cpu", cache)


def _on_gpu() -> Iterator[_Measured]:
    stream, facts = gpus.gpu()
    for elements in ELEMENTS_ON_GPU:
        for peer, per_element in ON_GPUS:
            session = gpus.session(stream, elements)
            text = f"{elements * FLOAT32 // 2**20} MiB", ""
            yield _Measured(peer.name, per_element, *text, elements, 2, 1, session, "gpu", facts.cache)


def _sample(
    measured: Sequence[_Measured], rounds: int, order: random.Random, progress: Callable[[str, int, int], None]
) -> None:
    """Take one sample of each per round, in random order, so that slow phases of the machine affect all equally."""
    for number in range(rounds):
        places = list(measured)
        order.shuffle(places)
        for position, one in enumerate(places):
            progress(f"round {number + 1}: {one.name}", number * len(places) + position, rounds * len(places))
            seconds, session = clock.sample(one.session, one.steps), one.session
            on_device = None if session.events is None else events.sample(session, one.steps, session.events, 0.0)
            one.samples.append(Sample(0, number, position, one.steps, seconds, device_seconds=on_device))


def _best(one: _Measured) -> float:
    return one.bytes_per_step / min(sample.seconds for sample in one.samples)


def _roof(one: _Measured) -> Roof:
    return Roof(one.workload, one.optimizer, one.name, one.bytes_per_step, _best(one), tuple(one.samples))


def _row(one: _Measured, rounds: int, seed: int) -> Row:
    seconds = [sample.seconds for sample in one.samples]
    on_device = [sample.device_seconds for sample in one.samples if sample.device_seconds is not None]
    working_set = one.arrays * one.elements * FLOAT32
    spread = stats.relative_iqr(seconds)
    words: list[Any] = ["dtopt", "bench", "roof", "--rounds", rounds, "--seed", seed]
    words += ["--device", one.device] if one.device != "cpu" else ["--threads", one.threads]
    return Row(
        pattern=one.name.removeprefix("roof: "),
        threads=one.threads,
        working_set=working_set,
        regime=environment.regime(working_set, one.cache),
        bytes_per_step=one.bytes_per_step,
        samples=tuple(one.samples),
        median=median(seconds),
        mad=stats.median_absolute_deviation(seconds),
        bytes_per_second=_best(one),
        rerun=shlex.join(map(str, words)),
        warnings=(f"samples spread by {spread:.0%}: disturbed",) if spread > stats.VERY_UNSTEADY_IQR else (),
        device=one.device,
        device_seconds=median(on_device) if on_device else None,
    )
