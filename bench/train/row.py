"""One row of `dtopt bench train`: one optimizer with one learning rate on one problem, over several seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, nan

from bench.errors import ResultsError
from bench.measuring.stats import Ratio
from bench.results.kind import Reading, Values
from bench.results.records import check_status


@dataclass(frozen=True)
class Point:
    """One evaluation of the loss.

    Attributes: step, 0 before the first; loss, None if it is not a number; seconds on the clock until then (gradients
      and steps, without evaluations).
    """

    step: int
    loss: float | None
    seconds: float

    @property
    def value(self) -> float:
        """The loss, NaN if it is not finite."""
        return nan if self.loss is None else self.loss


@dataclass(frozen=True)
class Run:
    """One seed.

    Attributes: steps and seconds until the first evaluation that reached the target, None if it was missed; curve;
      diverged: whether the loss was not finite; step_seconds, gradient_seconds, look_seconds: of the whole run; the
        first step's
      `first_step_seconds` is part of step_seconds.
    """

    seed: int
    steps: int | None
    seconds: float | None
    curve: tuple[Point, ...]
    diverged: bool
    step_seconds: float
    gradient_seconds: float
    look_seconds: float
    first_step_seconds: float


@dataclass(frozen=True)
class Row:
    """One cell of the grid. A value that was not measured is None.

    Attributes:
      problem, optimizer (without its learning rate), learning_rate, peer, mesh, layout, device, threads: independent
        variables.
      problem_version: changes with the numbers of a problem; source: hash of its data, if these do not come from a
        formula.
      target: the loss to reach; budget: steps after which a run ends.
      runs: by seed; reached: how many reached the target.
      median_steps, low_steps, high_steps: over seeds, a miss counted as later than any; None if that is a miss.
      median_seconds: of those that reached it, None unless more than half did.
      best: whether this is the best learning rate of its optimizer, peer and mesh.
      ratio: steps to target over those of the first peer and mesh at the same learning rate, by seed.
      versions: of the peer's packages. rerun: the command that measures this row again.
    """

    problem: str
    optimizer: str
    learning_rate: float
    peer: str
    mesh: str
    layout: str
    device: str
    threads: int
    problem_version: int
    target: float
    budget: int
    status: str
    reason: str | None
    rerun: str
    source: str | None = None
    runs: tuple[Run, ...] = ()
    reached: int = 0
    median_steps: float | None = None
    low_steps: float | None = None
    high_steps: float | None = None
    median_seconds: float | None = None
    best: bool = False
    ratio: Ratio | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Check that the members agree with each other.

        Raises: ResultsError if the members contradict each other.
        """
        where = f"training {self.problem!r} with {self.peer!r}"
        check_status(self.status, self.reason, where)
        if self.status == "ok" and not self.runs:
            raise ResultsError(f"{where}: it is 'ok' but holds no runs")
        if self.reached != sum(run.steps is not None for run in self.runs):
            raise ResultsError(f"{where}: `reached` is {self.reached}, which its runs contradict")


def _steps(row: Row) -> Values:
    return {"steps to target": tuple(inf if run.steps is None else float(run.steps) for run in row.runs)}


READING = Reading(
    ("problem", "optimizer", "learning_rate", "peer", "mesh", "layout", "device", "threads"),
    ("problem_version", "target"),
    _steps,
    unit="steps",
)
