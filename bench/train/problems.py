"""Small problems with a target loss, real and synthetic, that need no download. To add one, add a file and a line here.

Gradients are float32 numpy, written by hand, the same for every peer; batches depend only on the seed and the step.
Targets are the loss of Adam at 0.01, the best rate of its default grid, at about the middle of the budget, rounded. A
problem whose numbers change gets a new version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bench.cases.workloads import Tensor
from bench.errors import UnknownNameError
from bench.train import chars, logistic, quadratic, teacher

if TYPE_CHECKING:
    import numpy as np


class Task(Protocol):
    """A problem with its data."""

    def gradients(self, parameters: list[np.ndarray], seed: int, step: int) -> list[np.ndarray]:
        """Return the gradients of the loss on the batch of a step (from 0), float32, in the shapes of the
        parameters."""

    def loss(self, parameters: list[np.ndarray]) -> float:
        """Return the loss on the evaluation data, not on a batch."""


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes: name, as `-w` takes it; summary; version; tensors; make: returns its data; target: loss to reach;
      budget: most steps; look_every: steps between two evaluations of the loss; source: hash of data that do not come
        from a formula.
    """

    name: str
    summary: str
    version: int
    tensors: tuple[Tensor, ...]
    make: Callable[[], Task]
    target: float
    budget: int
    look_every: int
    source: Callable[[], str | None] = lambda: None


PROBLEMS: tuple[Problem, ...] = (
    Problem(
        "quadratic",
        "100 dims, a tenth of them 30 to 60 times as curved, noisy gradients",
        1,
        quadratic.TENSORS,
        quadratic.Quadratic,
        target=1.0,
        budget=600,
        look_every=10,
    ),
    Problem(
        "logistic",
        "logistic regression, gap to the optimum that Newton's method finds",
        1,
        logistic.TENSORS,
        logistic.Logistic,
        target=0.015,
        budget=600,
        look_every=10,
    ),
    Problem(
        "teacher",
        "a network learns another's outputs, mean squared error on new inputs",
        1,
        teacher.TENSORS,
        teacher.Teacher,
        target=0.001,
        budget=1000,
        look_every=20,
    ),
    Problem(
        "chars",
        "next character of Python's own help texts, bits per character on held-out text",
        1,
        chars.TENSORS,
        chars.Chars,
        target=3.0,
        budget=800,
        look_every=20,
        source=chars.source,
    ),
)

NAMES = tuple(problem.name for problem in PROBLEMS)


def problem(name: str) -> Problem:
    """Return the problem of that name. Raises: UnknownNameError."""
    for known in PROBLEMS:
        if known.name == name:
            return known
    raise UnknownNameError(f"no problem is called {name!r}; there are: {', '.join(NAMES)}")
