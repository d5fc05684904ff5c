"""Measure steps over mesh shapes: each mesh in its own processes, sampled in rounds of random order.

With all clients on this machine every mesh is alive at the same time and gives one sample per round, so that slow
phases affect all equally. With clients on several machines, and if memory is short, meshes run one after the other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from bench.forecast.plans import Plan, plan
from bench.measuring import clock
from bench.measuring.process import HungError, WorkerError
from bench.results.records import Sample
from bench.scale.group import Clients, Group, Launch, start_client
from bench.scale.setup import Setup

TOLERANCE = 2e-4
"""Largest relative error of reduced gradients, and of movements between meshes: float32 stays below it."""

RUNTIME = 600 * 1024**2
"""Bytes of a TensorFlow process before its first tensor."""

SHARE = 0.7
"""Fraction of the available memory that the processes may use."""

Progress = Callable[[str, int, int], None]


@dataclass
class Entry:
    """One mesh with its measurements so far."""

    setup: Setup
    plan: Plan
    group: Group | None = None
    status: str = "waiting"
    reason: str | None = None
    hung: bool = False
    steps: int = 1
    samples: list[Sample] = field(default_factory=list)
    client_seconds: list[tuple[float, ...]] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    reported_bytes: dict[str, int] = field(default_factory=dict)
    gradient_error: float | None = None
    movement_error: float | None = None
    movements: list[float] = field(default_factory=list)
    prepare_seconds: float | None = None
    peak_bytes: int | None = None

    def out(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason
        self.stop()

    def stop(self) -> None:
        if self.group is not None:
            self.group.stop()
            self.group = None


def make_entry(setup: Setup) -> Entry:
    return Entry(setup, plan(setup.model, setup.mesh, setup.layout, setup.placement, setup.training))


def needed(entry: Entry) -> int:
    """Return roughly the bytes of a mesh's processes on this machine: state, gradients twice, temporaries."""
    memory = entry.plan.footprint
    return entry.setup.clients * RUNTIME + entry.setup.mesh.devices * (memory.total + 3 * memory.gradients)


class Measurement:
    """The meshes of one run. KeyboardInterrupt may end `run`; the measurements so far are kept."""

    def __init__(
        self,
        entries: Sequence[Entry],
        clients: Clients,
        rounds: int,
        timeout: float,
        seed: int = 0,
        launch: Launch = start_client,
    ) -> None:
        self.entries = list(entries)
        self.interleaved = clients.local_client is None
        self._clients = clients
        self._rounds = rounds
        self._timeout = timeout
        self._order = random.Random(seed)
        self._launch = launch

    def run(self, available: int, progress: Progress) -> None:
        room = int(available * SHARE)
        for entry in self.entries:
            if self._on_this_host(entry) and needed(entry) > room:
                entry.out(
                    "skipped",
                    f"not enough memory: it needs about {needed(entry) / 1e9:.1f} GB and {room / 1e9:.1f} GB may be"
                    f" used ({SHARE:.0%} of what is available); choose a smaller workload or mesh",
                )
        able = [entry for entry in self.entries if entry.status == "waiting"]
        on_host = sum(needed(entry) for entry in able if self._on_this_host(entry))
        self.interleaved = self.interleaved and on_host <= room
        together = [able] if self.interleaved else [[entry] for entry in able]
        total = len(able) * (2 + self._rounds)
        done = 0

        def tell(what: str) -> None:
            nonlocal done
            progress(what, done, total)
            done += 1

        try:
            for number, alive in enumerate(together):
                self._run_together(number, alive, tell)
        finally:
            for entry in self.entries:
                entry.stop()

    def _on_this_host(self, entry: Entry) -> bool:
        """Whether all arrays of a mesh are in this machine's main memory."""
        return self._clients.local_client is None and entry.setup.device == "cpu"

    def _run_together(self, number: int, alive: Sequence[Entry], tell: Callable[[str], None]) -> None:
        for entry in alive:
            tell(f"starting {entry.setup.mesh}")
            self._try(entry, self._start)
        for entry in alive:
            tell(f"checking and warming up {entry.setup.mesh}")
            self._try(entry, self._make_ready)
        for round_number in range(self._rounds):
            order = list(alive)
            self._order.shuffle(order)
            for position, entry in enumerate(order):
                tell(f"round {round_number + 1}: {entry.setup.mesh}")
                place = (0 if self.interleaved else number, round_number, position)
                self._try(entry, partial(self._sample, place=place))
        for entry in alive:
            if entry.group is not None and entry.status == "ok":
                entry.group.leave(self._timeout)
            entry.stop()

    def _try(self, entry: Entry, act: Callable[[Entry], None]) -> None:
        if entry.status in ("failed", "skipped"):
            return
        try:
            act(entry)
        except WorkerError as error:
            entry.hung = isinstance(error, HungError)
            entry.out("failed", str(error))

    def _start(self, entry: Entry) -> None:
        entry.group = Group(entry.setup, self._clients, self._launch)
        entry.group.started(self._timeout)
        answers = entry.group.ask("prepare", self._timeout)
        entry.prepare_seconds = max(answer["seconds"] for answer in answers)
        entry.reported_bytes = {
            key: max(answer["reported_bytes"][key] for answer in answers) for key in answers[0]["reported_bytes"]
        }
        entry.status = "ok"

    def _make_ready(self, entry: Entry) -> None:
        """Run first steps, check and warm-up, with as many steps on every client."""
        assert entry.group is not None
        answers = entry.group.ask("check", self._timeout)
        entry.gradient_error = max(answer["gradient_error"] for answer in answers)
        entry.movements = answers[0]["movements"]
        if not entry.gradient_error <= TOLERANCE:
            entry.out("failed", f"its reduced gradients are wrong by {entry.gradient_error:.1e}, relative")
            return
        if any(not _alike(entry.movements, answer["movements"]) <= TOLERANCE for answer in answers):
            entry.out("failed", "its clients or devices disagree on the parameters after 3 steps")
            return
        self._compare(entry)
        if entry.status == "ok":
            assert entry.group is not None
            warm = entry.group.ask("warm", self._timeout)
            entry.steps = clock.steps_per_sample(max(answer["step_seconds"] for answer in warm))

    def _compare(self, entry: Entry) -> None:
        """Compare with the first mesh that ran; a model of several copies moves like the first."""
        first = next((one for one in self.entries if one.movements and one.status == "ok"), entry)
        size = min(len(first.movements), len(entry.movements))
        entry.movement_error = _alike(first.movements[:size], entry.movements[:size])
        if not entry.movement_error <= TOLERANCE:
            entry.out(
                "failed",
                f"its parameters move differently from those on {first.setup.mesh} (by {entry.movement_error:.1e})",
            )

    def _sample(self, entry: Entry, place: tuple[int, int, int]) -> None:
        assert entry.group is not None
        answers = entry.group.ask("sample", self._timeout, steps=entry.steps)
        seconds = tuple(answer["seconds"] for answer in answers)
        entry.samples.append(Sample(*place, entry.steps, max(seconds)))
        entry.client_seconds.append(seconds)
        entry.sent += [max(answer["sent"] for answer in answers)] if answers[0]["sent"] is not None else []
        entry.peak_bytes = max(answer["peak_bytes"] for answer in answers)

    def interrupt(self) -> None:
        """Mark the meshes without a sample as interrupted."""
        for entry in self.entries:
            if entry.status in ("waiting", "ok") and not entry.samples:
                entry.out("interrupted", "ended by Ctrl-C before its first sample")


def _alike(some: Sequence[float], others: Sequence[float]) -> float:
    """Return the largest difference, relative to the first; infinite for NaN."""
    worst = 0.0
    for a, b in zip(some, others, strict=True):
        error = abs(a - b) / abs(a) if a else abs(b)
        worst = max(worst, error if not math.isnan(error) else math.inf)
    return worst
