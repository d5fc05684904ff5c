"""The child process of one training peer: `python -m bench.train.worker FD`, see `bench.measuring.serving`.

numpy computes the gradient at the peer's own parameters, and the peer makes the step: two peers differ only in their
step.
"""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from bench import peers
from bench.cases.case import Case
from bench.cases.workloads import Tensor
from bench.measuring.environment import package_version
from bench.measuring.serving import serve
from bench.peers.peer import Peer, Session
from bench.train.problems import Problem, Task, problem
from bench.train.row import Point, Run

DIVERGED = 1e4
"""Multiple of its first value from which a loss counts as diverged."""


@dataclass(frozen=True)
class TrainingCase(Case):
    """A case whose tensors are those of a problem; `workload` is the problem's name."""

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        return problem(self.workload).tensors


class Trainer:
    """Owns the peer of this process, and the problems made so far."""

    def __init__(self, case: Case, peer: Peer) -> None:
        self.case = case
        self.peer = peer
        self._tasks: dict[str, Task] = {}

    def versions(self) -> dict[str, str]:
        return {name: package_version(name) or "from source" for name in self.peer.packages}

    def train(self, name: str, optimizer: str, seed: int) -> dict[str, Any]:
        """Make one run. Returns: the members of a Run."""
        definition = problem(name)
        task = self._tasks.setdefault(name, definition.make())
        session = self.peer.prepare(replace(self.case, workload=name, optimizer=optimizer, seed=seed))
        session.synchronise()
        return dataclasses.asdict(train(session, definition, task, seed))


def train(session: Session, definition: Problem, task: Task, seed: int) -> Run:
    """Make steps until an evaluation finds the target reached, the loss diverged, or the budget is spent.

    The clock measures gradients and steps, each waited for. It does not measure evaluations, nor the transfer of
    numbers to the peer.
    """
    clock = time.perf_counter
    stepping = computing = looking = first = 0.0
    curve: list[Point] = []
    for step in range(definition.budget + 1):
        parameters = [session.read(i) for i in range(len(definition.tensors))]
        if step % definition.look_every == 0:
            start = clock()
            loss = task.loss(parameters)
            looking += clock() - start
            curve.append(Point(step, loss, stepping + computing))
            if loss <= definition.target or _diverged(curve) or step == definition.budget:
                break
        start = clock()
        gradients = task.gradients(parameters, seed, step)
        computing += clock() - start
        session.set_gradients(gradients)
        session.synchronise()
        start = clock()
        session.run(1)
        session.synchronise()
        stepping += clock() - start
        first = first or stepping
    last = curve[-1]
    reached = last.value <= definition.target
    steps, seconds = (last.step, last.seconds) if reached else (None, None)
    return Run(seed, steps, seconds, tuple(curve), _diverged(curve), stepping, computing, looking, first)


def _diverged(curve: list[Point]) -> bool:
    return not math.isfinite(curve[-1].value) or curve[-1].value > DIVERGED * max(curve[0].value, 1e-9)


def _make(hello: dict[str, Any]) -> Trainer:
    return Trainer(TrainingCase.from_message(hello["case"]), peers.load(hello["module"], hello["peer"]))


if __name__ == "__main__":
    serve(_make)
