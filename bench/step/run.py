"""Run a plan, case by case, and return its result. Ctrl-C keeps the measurements so far."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from bench import roof
from bench.cases.case import Case
from bench.measuring import accelerators, environment
from bench.measuring.process import Child, Worker, WorkerError, allowed_cpus, fresh, undisturbed, worker_environment
from bench.measuring.server import Server
from bench.peers.peer import Peer
from bench.results.document import Result
from bench.results.records import Roof
from bench.step.contest import Contest, Launch, Progress
from bench.step.query import Plan
from bench.step.ratios import BUSY
from bench.step.row import Row
from bench.step.rows import make_roofs, make_rows

MODULE = "bench.step.worker"


class Starts:
    """Starts the workers of a run.

    If the plan allows it, workers are forked from one server that has imported TensorFlow, so that more rounds fit into
    a minute. If forking fails, they start as new processes.

    Attributes: ways, "forked" and "fresh", in which peers' workers were started.
    """

    def __init__(self, plan: Plan) -> None:
        threads = plan.cases[0].threads
        cpus, environment = allowed_cpus()[:threads], worker_environment(threads)
        self._server = Server(environment, cpus) if plan.settings.forked else None
        self.ways: set[str] = set()

    def __call__(self, peer: Peer, case: Case) -> Worker:
        if peer.module.startswith(f"{roof.__name__}."):
            return start(peer, case)
        if self._server is not None:
            with suppress(WorkerError):
                worker = Child(MODULE, _hello(peer, case), self._server.fork([peer.home.folder] if peer.home else []))
                self.ways.add("forked")
                return worker
        self.ways.add("fresh")
        return start(peer, case)

    def stop(self) -> None:
        with undisturbed():
            if self._server is not None:
                self._server.stop()


def _hello(peer: Peer, case: Case) -> dict[str, Any]:
    cpus = allowed_cpus()[: case.threads]
    return {"case": case.to_message(), "module": peer.module, "peer": peer.name.partition("@")[0], "cpus": cpus}


def start(peer: Peer, case: Case) -> Worker:
    """Start the worker of one peer in its own process: `bench.step.worker` in a new interpreter."""
    environment = worker_environment(case.threads)
    if peer.home is None:
        return Child(MODULE, _hello(peer, case), fresh(environment))
    paths = [peer.home.folder] if peer.home.python else [peer.home.folder, environment["PYTHONPATH"]]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return Child(MODULE, _hello(peer, case), fresh(environment, peer.home.python))


def run(
    plan: Plan,
    launch: Launch | None = None,
    progress: Progress = lambda what, done, of: None,
    available_memory: Callable[[], int] = environment.available_memory,
) -> Result:
    """Measure every peer on every case."""
    device = plan.cases[0].device
    log = environment.Log(plan.command, plan.cases[0].threads, device)
    order = random.Random(plan.seed)
    rows: list[Row] = []
    roofs: list[Roof] = []
    interrupted = False
    starts = Starts(plan)
    try:
        for case in plan.cases:
            contest = Contest(case, plan.peers, plan.settings, order, launch or starts)
            try:
                if not interrupted:
                    contest.run(plan.baseline, _room(device, available_memory()), progress)
            except KeyboardInterrupt:
                interrupted = True
            if interrupted:
                contest.interrupt()
            of_case = make_roofs(contest)
            roofs += of_case
            rows += make_rows(contest, plan.baseline, of_case, plan.again)
    finally:
        starts.stop()
    context = log.context(
        rounds=max((len(row.samples) for row in rows), default=0),
        order_seed=plan.seed,
        processes=_processes(rows),
        starts=sorted(starts.ways),
    )
    context["busy"] = any((row.others or 0.0) > BUSY for row in rows)
    return Result(context, tuple(roofs), tuple(rows), interrupted)


def _room(device: str, available: int) -> int:
    """Return the bytes that processes may use: of the machine's memory, and on a GPU at most its memory."""
    on_gpu = accelerators.free_memory(accelerators.describe()) if device == "gpu" else None
    return available if on_gpu is None else min(available, on_gpu)


def _processes(rows: Sequence[Row]) -> int:
    """Return the largest number of processes of a peer."""
    return max((len({sample.process for sample in row.samples}) for row in rows), default=0)
