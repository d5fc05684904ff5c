"""Check that a peer computes the right thing, before any of its times is taken and again after the last one.

Every peer starts from the same parameters and makes three steps. Then its parameters and moving averages must agree
with the float64 reference. After the last timed round it must agree with as many steps as the benchmark asked for, the
last of them with another gradient.

Up to 4096 elements of every tensor are compared. At the end these are elements that a peer cannot predict. If the rule
needs whole tensors, all elements are compared, and the largest tensors are left out, as the result shows. Everything is
read before anything is computed.

The error of a tensor is its largest difference, less the largest difference that its dtype can cause by rounding. It is
a fraction of the tensor's largest movement over the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from bench.cases.case import Case
from bench.cases.values import gradient
from bench.step import giving

if TYPE_CHECKING:
    import numpy as np

    from bench.peers.peer import Conventions, Session
    from bench.step.reference import Expected

STEPS = 3

UNITS = {"float32": 2.0**-24, "bfloat16": 2.0**-8}
"""Unit round-off: the largest relative change of a number when it is stored."""

ROUNDINGS = 2
"""Roundings of the parameter and of its average in each step. The average is a sum of two products: averages move a
hundredth as far as parameters.
"""

BFLOAT16_TOLERANCE = 0.04
"""Further roundings for bfloat16, in addition to the parameter's: ten roundings of gradients, slots and changes."""


@dataclass(frozen=True)
class Agreement:
    """The result of a comparison.

    Attributes: steps made; elements compared; largest error, relative, None for no number; the tensor that has it; the
      tolerance; tensors too large to compare.
    """

    steps: int
    elements: int
    error: float | None
    worst_tensor: str
    tolerance: float
    unchecked: int = 0

    @property
    def agrees(self) -> bool:
        return self.elements > 0 and self.error is not None and self.error <= self.tolerance  # False for NaN


def tolerance(case: Case) -> float:
    """Return the largest error that still counts as agreement."""
    return BFLOAT16_TOLERANCE if case.options.dtype == "bfloat16" else case.algorithm.tolerance


def give_gradients(case: Case, session: Session, which: int) -> None:
    """Give the session gradient `which` of every tensor, one tensor at a time."""
    session.set_gradients(gradient(case, index, which) for index in range(len(case.tensors)))


def check(case: Case, session: Session, conventions: Conventions) -> Agreement:
    """Make the steps that `bench.step.worker` has not made yet, and compare.

    The session must have made its first step with gradient 0. The worker times that step, because it compiles.
    """
    placed = 0
    for step in giving.calls(case.options.accumulate)[1:]:
        for which in step:
            if which != placed:
                session.synchronise()
                give_gradients(case, session, which)
                placed = which
            session.call()
    session.steps_made = STEPS
    return compare(case, see(case, session), conventions)


def finish(case: Case, session: Session) -> None:
    """Make the last steps, with gradient 0 again."""
    session.synchronise()
    give_gradients(case, session, 0)
    session.run(giving.last_steps(session.steps_made))


@dataclass(frozen=True)
class Seen:
    """Values read from a session.

    Attributes: mixes, the gradients of each of its steps; place, where the positions begin; values, per index of a
      tensor the chosen elements of the parameter and of its average in float64. A value is None if the shape is wrong
      or there is no average.
    """

    mixes: Sequence[giving.Mix]
    place: float
    values: Mapping[int, tuple[np.ndarray | None, np.ndarray | None]]


def see(case: Case, session: Session, place: float = 0.0, turns: int = 0) -> Seen:
    """Read all values to compare; `turns`: include the steps with new gradients."""
    from bench.step import reference

    session.synchronise()
    values = {}
    for index in reference.able(case, session.steps_made):
        at = reference.positions(case, index, place)
        average = session.read_average(index) if session.read_average and case.options.ema is not None else None
        values[index] = (_chosen(case, index, session.read(index), at), _chosen(case, index, average, at))
    return Seen(giving.mixes(case.options.accumulate, session.steps_made, turns), place, values)


def _chosen(case: Case, index: int, values: np.ndarray | None, at: np.ndarray) -> np.ndarray | None:
    import numpy as np

    array = np.asarray(values)  # plain: a class of the peer's own could bring its own arithmetic
    return array.reshape(-1)[at].astype(np.float64) if array.shape == case.tensors[index].shape else None


def compare(case: Case, seen: Seen, conventions: Conventions) -> Agreement:
    """Compare with as many steps of the reference as were made."""
    from bench.step import reference

    errors: list[tuple[float, str]] = []
    compared = 0
    steps = len(seen.mixes)
    for index, expectation in reference.expected(case, list(seen.values), seen.mixes, conventions, seen.place):
        value, average = seen.values[index]
        error = _difference(case, value, expectation.end, expectation, steps)
        if expectation.average is not None:
            error = max(error, _difference(case, average, expectation.average, expectation, steps))
        errors.append((error, case.tensors[index].name))
        compared += int(expectation.judged.sum())
    error, worst = max(errors, default=(0.0, ""))
    left = len(case.tensors) - len(seen.values)
    return Agreement(steps, compared, error if isfinite(error) else None, worst, tolerance(case), left)


def moves(case: Case, session: Session) -> Agreement:
    """Check that another step still moves every tensor, the only check for an optimizer without a reference.

    The error of a tensor that does not move is 1.
    """
    import numpy as np

    before = [np.array(session.read(index)) for index in range(len(case.tensors))]
    session.run(1)
    session.synchronise()
    still = [i for i, start in enumerate(before) if not np.any(np.asarray(session.read(i)) != start)]
    finite = all(np.all(np.isfinite(start)) for start in before)
    worst = case.tensors[still[0]].name if still else ""
    error = None if not finite else 1.0 if still else 0.0
    return Agreement(session.steps_made, case.elements, error, worst, 0.0)


def _difference(case: Case, here: np.ndarray | None, end: np.ndarray, expectation: Expected, steps: int) -> float:
    """Return the largest error; infinite for a wrong shape and for NaN, so that these rank highest."""
    import numpy as np

    if here is None:
        return float("inf")
    stored = ROUNDINGS * steps * UNITS[case.options.dtype] * np.maximum(np.abs(end), np.abs(expectation.start))
    off = np.maximum(0.0, np.abs(here - end) - stored)
    error = float(np.max(np.where(expectation.judged, off, 0.0)) / np.max(np.abs(end - expectation.start)))
    return error if error == error else float("inf")
