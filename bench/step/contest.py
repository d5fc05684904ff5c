"""Measure one case: its peers and memory bandwidth limits, in processes, sampled in rounds of random order.

In every round each peer gives one sample, so that slow phases of the machine affect all equally. The processes of a
peer take turns. Peers that do not fit into memory together run in groups. The baseline and the limits are in every
group, and ratios are taken within a round of a group. After the last round every process is checked again.

A peer drops out with its reason if it crashes, hangs or computes something else, or if its times are implausible. The
others continue.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.cases.case import Case
from bench.measuring import load, stats
from bench.measuring.clock import WALL_CLOCK, WarmUp
from bench.measuring.process import UnsupportedCaseError, Worker, WorkerError, allowed_cpus, undisturbed
from bench.measuring.rounds import Pace, Rounds
from bench.peers.peer import Peer
from bench.results.records import Sample
from bench.roof.patterns import roofs
from bench.step import suspicion
from bench.step.agreement import Agreement
from bench.step.memory import FORKED, RUNTIME, groups, too_large

TRACED_STEPS = 10

ROOFS_APART = 4
"""Rounds between two samples of the memory bandwidth limits when two versions are compared: they take longer than both
peers.
"""

LONG = 240.0
"""Seconds of a budget from which each peer gets twice as many processes."""

Launch = Callable[[Peer, Case], Worker]
Progress = Callable[[str, int, int], None]
"""Called with (the current activity, parts done, parts in all)."""


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes: pace, of rounds; processes per peer, None to choose them by the number of peers; cap, of a peer's
      warm-up in seconds; timeout of a worker's answer in seconds; profile, the file of a trace; forked, whether workers
      are forked from one process, see `bench.step.run`.
    """

    pace: Pace = field(default_factory=Pace)
    processes: int | None = None
    warm_up_seconds: float = 5.0
    timeout: float = 300.0
    profile: Path | None = None
    forked: bool = False

    @property
    def runtime(self) -> int:
        """Bytes of a process before it creates its first tensor."""
        return FORKED if self.forked else RUNTIME

    def processes_of(self, peers: int) -> int:
        """Return how many processes each peer may have; `Contest._open` may start fewer.

        Few peers show little of the variation between processes, so each gets more. Each also gets more if the budget
        leaves time to detect small differences.
        """
        few = 6 + 2 * self.forked if peers <= 2 else 4 if peers <= 4 else 3
        return self.processes or (2 * few if self.pace.rounds is None and self.pace.budget >= LONG else few)


@dataclass
class Contestant:
    """A peer or a memory bandwidth limit, with its measurements so far; `workers` are its processes."""

    peer: Peer
    is_roof: bool = False
    workers: list[Worker] = field(default_factory=list)
    status: str = "waiting"
    reason: str | None = None
    samples: list[Sample] = field(default_factory=list)
    steps_per_sample: int = 1
    prepare_seconds: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    first_step_seconds: float | None = None
    agreement: Agreement | None = None
    warm_up: WarmUp | None = None
    step_share: float | None = None
    took: str | None = None
    spent: list[tuple[float, float]] = field(default_factory=list)
    """Seconds of CPU time of a round, and the time of its steps that the peer reports."""
    clocks: list[tuple[float, float]] = field(default_factory=list)
    """Seconds of each sample by the clock of this process, and the total time that the peer reports."""
    spins: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    device_peak_bytes: int | None = None
    remark: str = ""
    clock: str = WALL_CLOCK
    untraced: str | None = None

    @property
    def which(self) -> tuple[str, str]:
        """Return the peer without its version."""
        return self.peer.module, self.peer.name.partition("@")[0]

    def out(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason
        self.stop()

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()
        self.workers = []

    def times(self) -> dict[stats.Place, float]:
        """Return the seconds per step by (group, round, process)."""
        return {sample.place: sample.seconds for sample in self.samples}


class Contest:
    """The contestants of one case. KeyboardInterrupt may end `run`; the measurements so far are kept."""

    def __init__(
        self, case: Case, peers: Iterable[Peer], settings: Settings, order: random.Random, launch: Launch
    ) -> None:
        self.case = case
        self.contestants = [Contestant(peer) for peer in peers]
        self.roofs = [Contestant(peer, is_roof=True) for peer, _ in roofs(case)]
        self.processes = settings.processes_of(len(self.contestants)) if case.device == "cpu" else 1
        self._settings = settings
        self._order = order
        self._launch = launch
        self._cpus = allowed_cpus()[: case.threads]
        self._traced = False
        two_versions = any(contestant.peer.home for contestant in self.contestants)
        self._roofs_apart = ROOFS_APART if two_versions and settings.pace.rounds is None else 1

    def run(self, baseline: str, available_memory: int, progress: Progress) -> None:
        """Measure everything that can run."""
        for contestant in self.contestants:
            if reason := contestant.peer.unavailable(self.case):
                contestant.out("skipped", reason)
        if not self._able():
            return
        first = next((peer for peer in self._able() if peer.name == baseline), self._able()[0])
        for contestant in self.contestants:
            if contestant.status == "waiting" and (
                reason := too_large(contestant.peer, first, self.case, available_memory, self._settings.runtime)
            ):
                contestant.out("skipped", reason)
        if first not in self._able():
            return
        together, self.processes = self._groups(first, available_memory)
        try:
            for number, group in enumerate(together):
                alive = [*self.roofs, *(c for c in self.contestants if c.peer in group)]
                self._run_group(number, alive, first, progress, len(together))
                for contestant in self.contestants:
                    if contestant.peer is not first:
                        contestant.stop()
        finally:
            with undisturbed():
                for contestant in (*self.contestants, *self.roofs):
                    contestant.stop()

    def _able(self) -> list[Peer]:
        return [contestant.peer for contestant in self.contestants if contestant.status == "waiting"]

    def _comparisons(self) -> int:
        """Count the ratios that are judged together: of all groups, as in `bench.step.ratios`."""
        return max(1, sum(contestant.status in ("waiting", "ok") for contestant in self.contestants) - 1)

    def _groups(self, first: Peer, available_memory: int) -> tuple[list[list[Peer]], int]:
        """Return the groups, and how many processes each peer has: fewer if memory is short, before there are many
        groups."""
        runtime = self._settings.runtime
        for processes in range(self.processes, 1, -1):
            peer_groups = groups(self._able(), first, self.case, available_memory // processes, runtime)
            if len(peer_groups) == 1:
                return peer_groups, processes
        return groups(self._able(), first, self.case, available_memory, runtime), 1

    def interrupt(self) -> None:
        """Mark the contestants without a sample as interrupted."""
        for contestant in self.contestants:
            if contestant.status in ("waiting", "ok") and not contestant.samples:
                contestant.out("interrupted", "ended by Ctrl-C before its first sample")

    def _run_group(
        self, group: int, alive: list[Contestant], first: Peer, progress: Progress, group_count: int
    ) -> None:
        began, pace = time.monotonic(), self._settings.pace
        rounds = Rounds(Pace(pace.rounds, pace.budget / group_count), self._comparisons(), began)
        done = 0

        def tell(what: str) -> None:
            nonlocal done
            progress(what, done, (2 + rounds.expected) * len(alive))
            done += 1

        self._open([contestant for contestant in alive if contestant.status == "waiting"], rounds, tell)
        for one in alive:  # versions of a peer: steps of a longer sample are slower where others use the machine
            one.steps_per_sample = max(other.steps_per_sample for other in alive if other.which == one.which)
        while any(c.workers for c in alive if not c.is_roof) and rounds.more(lambda: self._width(alive, first)):
            with_roofs = rounds.done % self._roofs_apart == 0
            order = [c for c in alive if c.workers and (with_roofs or not c.is_roof)]
            self._order.shuffle(order)
            self._round(group, rounds.done, order, tell)
            rounds.done += 1
        last = all(contestant.status != "waiting" for contestant in self.contestants)
        self._judge([c for c in alive if c.workers and not c.is_roof and (c.peer is not first or last)])

    def _width(self, alive: Sequence[Contestant], first: Peer) -> float:
        base = next((c for c in alive if c.peer is first), None)
        others = [c for c in alive if not c.is_roof and c.peer is not first and c.workers]
        if base is None or not base.workers or not others:
            return 0.0
        spread = stats.between([stats.log_ratios(c.times(), base.times()) for c in others])
        ratios = [stats.paired_ratio(c.times(), "", base.times(), self._comparisons(), spread) for c in others]
        return max(stats.width(ratio) for ratio in ratios)

    @staticmethod
    def _try(contestant: Contestant, act: Callable[[Contestant], None]) -> None:
        if contestant.status in ("failed", "skipped"):
            return
        try:
            act(contestant)
        except UnsupportedCaseError as error:
            contestant.out("skipped", str(error))
        except WorkerError as error:
            contestant.out("failed", str(error))

    def _open(self, new: Sequence[Contestant], rounds: Rounds, tell: Callable[[str], None]) -> None:
        """Start the processes: first one of each, then more while that leaves time for the rounds."""
        most, count = self.processes, 1
        self.processes = 0
        while self.processes < most:
            began = time.monotonic()
            self._open_some([c for c in new if not (c.is_roof and self.processes)], count, tell)
            self.processes += count
            if not self._settings.processes and not rounds.leaves(time.monotonic() - began, self.processes):
                return
            count = min(most - self.processes, max(1, len(allowed_cpus()) // max(1, len(new))))

    def _open_some(self, new: Sequence[Contestant], count: int, tell: Callable[[str], None]) -> None:
        for contestant in new:  # all at once: imports and building are not measured
            self._try(contestant, partial(self._start, count=count))
        for act, what in ((self._wait_until_prepared, "starting"), (self._make_ready, "checking and warming up")):
            for contestant in new:  # checks and warm-ups one at a time, as in the rounds
                tell(f"{what} {contestant.peer.name}")
                self._try(contestant, partial(act, count=count))

    def _start(self, contestant: Contestant, count: int) -> None:
        for _ in range(count):
            contestant.workers.append(self._launch(contestant.peer, self.case))
            contestant.workers[-1].request("prepare")
        contestant.status = "ok"

    def _wait_until_prepared(self, contestant: Contestant, count: int) -> None:
        for worker in contestant.workers[-count:]:
            worker.answer(self._settings.timeout)  # that the process has started
            prepared = worker.answer(self._settings.timeout)
            contestant.prepare_seconds = max(prepared["seconds"], contestant.prepare_seconds or 0.0)
            contestant.versions = prepared["versions"]
            contestant.remark = prepared.get("remark", "")
            contestant.clock = prepared.get("clock", WALL_CLOCK)

    def _make_ready(self, contestant: Contestant, count: int) -> None:
        """Run first steps, check and warm-up of the newest processes."""
        for worker in contestant.workers[-count:]:
            if not contestant.is_roof:
                checked = self._ask(worker, "check")
                contestant.first_step_seconds = contestant.first_step_seconds or checked["first_step_seconds"]
                self._agree(contestant, Agreement(**checked["agreement"]))
                if contestant.status != "ok":
                    return
            warm = self._ask(worker, "warm", most_seconds=self._settings.warm_up_seconds)
            contestant.steps_per_sample = max(warm.pop("steps_per_sample"), contestant.steps_per_sample)
            warm_up = WarmUp(**warm)
            if contestant.warm_up is None or not warm_up.steady:
                contestant.warm_up = warm_up

    def _agree(self, contestant: Contestant, agreement: Agreement) -> None:
        """Keep the largest error of a contestant's checks, and judge it."""
        if contestant.peer.own_algorithm and agreement.tolerance:
            return  # no reference: it must only move at the end
        worst = contestant.agreement
        if worst is None or agreement.steps > worst.steps or (agreement.error or 0.0) > (worst.error or 0.0):
            contestant.agreement = agreement
        if not agreement.elements:
            contestant.out("skipped", "every tensor is too large to check whether it computes the right thing")
        elif not agreement.agrees:
            contestant.agreement = agreement
            contestant.out("failed", suspicion.of_agreement(agreement))

    def _ask(self, worker: Worker, do: str, **arguments: Any) -> dict[str, Any]:
        worker.request(do, **arguments)
        return worker.answer(self._settings.timeout)

    def _round(self, group: int, number: int, order: Sequence[Contestant], tell: Callable[[str], None]) -> None:
        """Take a sample of each, and record who used the CPUs. Work that a peer does during the turns of others counts,
        too."""
        sessions = [pid for c in order for worker in c.workers if (pid := getattr(worker, "pid", None))]
        before, began = load.read(sessions, self._cpus), time.monotonic()
        walls: dict[int, float] = {}
        for position, contestant in enumerate(order):
            tell(f"round {number + 1}: {contestant.peer.name}")
            place, process = (group, number, position), number % len(contestant.workers)
            start = time.monotonic()
            self._try(contestant, partial(self._sample, place=place, process=process))
            walls[position] = time.monotonic() - start
        use, wall = load.between(before, load.read(sessions, self._cpus)), time.monotonic() - began
        took = load.find_violations(sessions, self._cpus)
        for position, contestant in enumerate(order):
            mine = [pid for worker in contestant.workers if (pid := getattr(worker, "pid", None))]
            contestant.took = contestant.took or next((took[pid] for pid in mine if pid in took), None)
            if use and mine:
                peer_seconds, sample = sum(use.of_sessions[pid] for pid in mine), contestant.samples[-1]
                contestant.samples[-1] = replace(sample, cpus=peer_seconds / walls[position], others=use.others / wall)
                contestant.spent.append((peer_seconds, sample.steps * sample.seconds + 2 * (sample.latency or 0.0)))

    def _sample(self, contestant: Contestant, place: tuple[int, int, int], process: int) -> None:
        steps, began = contestant.steps_per_sample, time.monotonic()
        answer = self._ask(contestant.workers[process], "sample", steps=steps)
        if "told" in answer:
            contestant.clocks.append((time.monotonic() - began, answer["told"]))
        resident, late = answer["resident_bytes"], answer.get("late")
        contestant.samples.append(
            Sample(
                *place,
                steps,
                answer["seconds"],
                answer["latency"],
                resident_bytes=resident,
                process=process,
                late=late,
                host=answer.get("host"),
                device_seconds=answer.get("device_seconds"),
            )
        )
        contestant.peak_bytes, contestant.device_peak_bytes = answer["peak_bytes"], answer["device_peak_bytes"]

    def _judge(self, judged: Sequence[Contestant]) -> None:
        """Check after the last round that the peers did the work that was timed. All run at once: nothing is timed any
        more."""
        place = self._order.random()
        for contestant in judged:
            reason = suspicion.of_samples(contestant.samples, self.case.threads, contestant.took)
            if not reason and self.case.options.cache != "cold":
                reason = suspicion.of_clock(contestant.spent, self.case.threads) or suspicion.of_wall(contestant.clocks)
            if reason:
                contestant.out("failed", reason)
            for worker in contestant.workers:
                again = partial(worker.request, "check_again", place=place)
                self._try(contestant, lambda _, again=again: again())  # type: ignore[misc]
        for contestant in judged:
            self._try(contestant, self._hear)
        if self._settings.profile and not self._traced:
            self._trace(next((c for c in judged if c.status == "ok"), None))

    def _trace(self, contestant: Contestant | None) -> None:
        """Trace the first peer that was measured, in its first process, when nothing is timed any more."""
        if contestant is None:
            return
        self._traced = True
        try:
            self._ask(contestant.workers[0], "trace", steps=TRACED_STEPS, path=str(self._settings.profile))
        except WorkerError as error:  # its times are still valid
            contestant.untraced = str(error)

    def _hear(self, contestant: Contestant) -> None:
        timed = sum(sample.steps * sample.seconds for sample in contestant.samples)
        for worker in contestant.workers:
            answer = worker.answer(self._settings.timeout)
            self._agree(contestant, Agreement(**answer["agreement"]))
            contestant.spins.append(answer.get("spins", 0.0))
            first, second = answer["reads"]
            reason = suspicion.of_reading(first, second, timed / len(contestant.workers or [worker]))
            reason = reason or suspicion.of_new_gradients(*answer["given"])
            if answer["changed"]:
                reason = f"it changed {answer['changed']}, which judges it"
            if reason:
                contestant.out("failed", reason)
            if contestant.status != "ok":
                return
        if self.case.options.in_situ and contestant.status == "ok":
            steps = contestant.steps_per_sample
            contestant.step_share = median(self._ask(w, "share", steps=steps)["share"] for w in contestant.workers)
