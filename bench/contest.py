"""One case: its peers and roofs, each held in a process, sampled in rounds of random order.

In every round each contestant gives one sample, so that the machine's slow phases hit all alike. Peers that
do not fit into memory together run in groups; the baseline and the roofs are in every group, and ratios are
taken within a round of a group. A peer that crashes, hangs or computes something else is out with its reason,
and the others go on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from bench.agreement import Agreement
from bench.case import Case
from bench.clock import WarmUp
from bench.memory import groups, too_large
from bench.peer import Peer
from bench.process import UnsupportedCaseError, WorkerError
from bench.records import Sample
from bench.roof import ROOFS


class Worker(Protocol):
    """`bench.process.Process`, or a fake."""

    def request(self, do: str, **arguments: Any) -> None: ...

    def answer(self, timeout: float) -> dict[str, Any]: ...

    def stop(self) -> None: ...


Launch = Callable[[Peer, Case], Worker]
Progress = Callable[[str, int, int], None]
"""(what is being done, parts done, parts in all)."""


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes: samples per peer; cap of a peer's warm-up in seconds; seconds that a worker may take for one
      answer.
    """

    rounds: int = 9
    warm_up_seconds: float = 5.0
    timeout: float = 300.0


@dataclass
class Contestant:
    """A peer or a roof and what is known about it so far."""

    peer: Peer
    is_roof: bool = False
    worker: Worker | None = None
    status: str = "waiting"
    reason: str | None = None
    samples: list[Sample] = field(default_factory=list)
    steps_per_sample: int = 1
    prepare_seconds: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    first_step_seconds: float | None = None
    agreement: Agreement | None = None
    warm_up: WarmUp | None = None
    peak_bytes: int | None = None
    device_peak_bytes: int | None = None

    def out(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason
        self.stop()

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.stop()
            self.worker = None


class Contest:
    """The contestants of one case. `run` may be ended by KeyboardInterrupt; what was measured stays."""

    def __init__(
        self, case: Case, peers: Iterable[Peer], settings: Settings, order: random.Random, launch: Launch
    ) -> None:
        self.case = case
        self.contestants = [Contestant(peer) for peer in peers]
        self.roofs = [Contestant(peer, is_roof=True) for peer, _ in ROOFS] if case.device == "cpu" else []
        self._settings = settings
        self._order = order
        self._launch = launch
        self._done = 0

    def run(self, baseline: str, available_memory: int, progress: Progress) -> None:
        """Measures everything that can run."""
        for contestant in self.contestants:
            if reason := contestant.peer.unavailable(self.case):
                contestant.out("skipped", reason)
        if not self._able():
            return
        first = next((peer for peer in self._able() if peer.name == baseline), self._able()[0])
        for contestant in self.contestants:
            if contestant.status == "waiting" and (
                reason := too_large(contestant.peer, first, self.case, available_memory)
            ):
                contestant.out("skipped", reason)
        able = self._able()
        if first not in able:
            return
        together = groups(able, first, self.case, available_memory)
        in_rounds = sum(len(group) + len(self.roofs) for group in together)
        parts = 2 * (len(able) + len(self.roofs)) + in_rounds * self._settings.rounds
        try:
            for number, group in enumerate(together):
                alive = [*self.roofs, *(c for c in self.contestants if c.peer in group)]
                self._run_group(number, alive, lambda what: self._tell(progress, what, parts))
                for contestant in self.contestants:
                    if contestant.peer is not first:
                        contestant.stop()
        finally:
            for contestant in (*self.contestants, *self.roofs):
                contestant.stop()

    def _able(self) -> list[Peer]:
        return [contestant.peer for contestant in self.contestants if contestant.status == "waiting"]

    def interrupt(self) -> None:
        """Marks those that have no sample yet as interrupted."""
        for contestant in self.contestants:
            if contestant.status in ("waiting", "ok") and not contestant.samples:
                contestant.out("interrupted", "ended by Ctrl-C before its first sample")

    def _tell(self, progress: Progress, what: str, parts: int) -> None:
        progress(what, self._done, parts)
        self._done += 1

    def _run_group(self, group: int, alive: list[Contestant], tell: Callable[[str], None]) -> None:
        new = [contestant for contestant in alive if contestant.status == "waiting"]
        for contestant in new:  # all at once: imports and building are not measured
            self._try(contestant, self._start)
        for contestant in new:
            tell(f"starting {contestant.peer.name}")
            self._try(contestant, self._wait_until_prepared)
        for contestant in new:  # one at a time, as in the rounds
            tell(f"checking and warming up {contestant.peer.name}")
            self._try(contestant, self._make_ready)
        for round_number in range(self._settings.rounds):
            order = [contestant for contestant in alive if contestant.worker is not None]
            self._order.shuffle(order)
            for position, contestant in enumerate(order):
                tell(f"round {round_number + 1}: {contestant.peer.name}")
                self._try(contestant, partial(self._sample, place=(group, round_number, position)))

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

    def _start(self, contestant: Contestant) -> None:
        contestant.worker = self._launch(contestant.peer, self.case)
        contestant.status = "ok"
        contestant.worker.request("prepare")

    def _wait_until_prepared(self, contestant: Contestant) -> None:
        worker, timeout = self._alive(contestant), self._settings.timeout
        worker.answer(timeout)  # that the process has started
        prepared = worker.answer(timeout)
        contestant.prepare_seconds, contestant.versions = prepared["seconds"], prepared["versions"]

    def _make_ready(self, contestant: Contestant) -> None:
        """First steps, check and warm-up."""
        worker, timeout = self._alive(contestant), self._settings.timeout
        if not contestant.is_roof:
            worker.request("check")
            checked = worker.answer(timeout)
            contestant.first_step_seconds = checked["first_step_seconds"]
            contestant.agreement = Agreement(**checked["agreement"])
            if not contestant.agreement.elements:
                contestant.out("skipped", "every tensor is too large to check whether it computes the right thing")
                return
            if not contestant.agreement.agrees:
                contestant.out("failed", _disagreement(contestant.agreement))
                return
        worker.request("warm", most_seconds=self._settings.warm_up_seconds)
        warm = worker.answer(timeout)
        contestant.steps_per_sample = warm.pop("steps_per_sample")
        contestant.warm_up = WarmUp(**warm)

    def _sample(self, contestant: Contestant, place: tuple[int, int, int]) -> None:
        worker, steps = self._alive(contestant), contestant.steps_per_sample
        worker.request("sample", steps=steps)
        taken = worker.answer(self._settings.timeout)
        seconds, latency = taken["seconds"], taken["latency"]
        contestant.samples.append(Sample(*place, steps, seconds, latency, taken["step_share"], taken["resident_bytes"]))
        contestant.peak_bytes, contestant.device_peak_bytes = taken["peak_bytes"], taken["device_peak_bytes"]

    @staticmethod
    def _alive(contestant: Contestant) -> Worker:
        if contestant.worker is None:
            raise WorkerError("its process has ended")
        return contestant.worker


def _disagreement(agreement: Agreement) -> str:
    return (
        f"computes something else: after {agreement.steps} steps {agreement.worst_tensor} is off by"
        f" {agreement.error:.1e} of its movement (allowed: {agreement.tolerance:.0e})"
    )
