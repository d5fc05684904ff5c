"""Runs a plan, case by case, and gives its result. Ctrl-C keeps what was measured."""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Callable

from bench import environment
from bench.contest import Contest, Launch, Progress
from bench.plan import Plan
from bench.process import Process
from bench.records import Roof
from bench.results import Result
from bench.rows import make_roofs, make_rows
from bench.step_row import Row

BUSY_LOAD = 0.5
"""Runnable processes before the run above which the machine is called busy."""


def run(
    plan: Plan,
    launch: Launch = Process,
    progress: Progress = lambda what, done, of: None,
    available_memory: Callable[[], int] = environment.available_memory,
) -> Result:
    """Measures every peer on every case."""
    context = environment.describe(plan.cases[0].threads)
    start, started = time.monotonic(), _now()
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
        rows += make_rows(contest, plan.baseline, of_case, plan.settings.rounds)
    context |= {
        "command": plan.command,
        "rounds": plan.settings.rounds,
        "order_seed": plan.seed,
        "started": started,
        "seconds": time.monotonic() - start,
        "load_after": environment.load(),
        "busy": context["load"] > BUSY_LOAD,
    }
    return Result(context, tuple(roofs), tuple(rows), interrupted)


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
