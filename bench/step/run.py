"""Runs a plan, case by case, and gives its result. Ctrl-C keeps what was measured."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence

from bench.cases.case import Case
from bench.measuring import environment
from bench.measuring.process import Child, Worker, allowed_cpus, worker_environment
from bench.peers.peer import Peer
from bench.results.document import Result
from bench.results.records import Roof
from bench.step.contest import Contest, Launch, Progress
from bench.step.query import Plan
from bench.step.ratios import BUSY
from bench.step.row import Row
from bench.step.rows import make_roofs, make_rows


def start(peer: Peer, case: Case) -> Worker:
    """The worker of one peer, in a process of its own: `bench.step.worker`."""
    cpus = allowed_cpus()[: case.threads]
    name = peer.name.partition("@")[0]
    hello = {"case": case.to_message(), "module": peer.module, "peer": name, "cpus": cpus}
    environment = worker_environment(case.threads)
    if peer.home is None:
        return Child("bench.step.worker", hello, environment)
    paths = [peer.home.folder] if peer.home.python else [peer.home.folder, environment["PYTHONPATH"]]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return Child("bench.step.worker", hello, environment, peer.home.python)


def run(
    plan: Plan,
    launch: Launch = start,
    progress: Progress = lambda what, done, of: None,
    available_memory: Callable[[], int] = environment.available_memory,
) -> Result:
    """Measures every peer on every case."""
    log = environment.Log(plan.command, plan.cases[0].threads)
    order = random.Random(plan.seed)
    rows: list[Row] = []
    roofs: list[Roof] = []
    interrupted = False
    for case in plan.cases:
        contest = Contest(case, plan.peers, plan.settings, order, launch)
        try:
            if not interrupted:
                contest.run(plan.baseline, available_memory(), progress)
        except KeyboardInterrupt:
            interrupted = True
        if interrupted:
            contest.interrupt()
        of_case = make_roofs(contest)
        roofs += of_case
        rows += make_rows(contest, plan.baseline, of_case, plan.again)
    context = log.context(
        rounds=max((len(row.samples) for row in rows), default=0), order_seed=plan.seed, processes=_processes(rows)
    )
    context["busy"] = any((row.others or 0.0) > BUSY for row in rows)
    return Result(context, tuple(roofs), tuple(rows), interrupted)


def _processes(rows: Sequence[Row]) -> int:
    """The most that a peer had."""
    return max((len({sample.process for sample in row.samples}) for row in rows), default=0)
