"""Whether a peer computes what it should, checked before any of its times is believed.

Every peer starts from the same parameters, makes three steps with gradients A, A, B, and must then agree with
a float64 reference. Up to 4096 elements of every tensor are compared, evenly spread. The error of a tensor is
its largest difference as a part of the tensor's largest movement over the three steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.case import Case, gradient, parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from bench.peer import Session

GRADIENTS = (0, 0, 1)
"""Which gradient each step uses. With one alone a wrong beta would not show: Adam hardly sees |g|."""

TOLERANCE = 2e-4
"""float32 arithmetic stays below it (1 - 0.999**t in float32 alone is off by up to 5e-5); a wrong formula
does not."""

MOST_ELEMENTS = 4096


@dataclass(frozen=True)
class Agreement:
    """Attributes: steps made; elements compared; largest error, relative; the tensor that has it; the
    tolerance."""

    steps: int
    elements: int
    error: float
    worst_tensor: str
    tolerance: float = TOLERANCE

    @property
    def agrees(self) -> bool:
        return self.error <= self.tolerance  # False for NaN


def give_gradients(case: Case, session: Session, which: int) -> None:
    """Places gradient number `which` of every tensor, one tensor at a time."""
    session.set_gradients(gradient(case, index, which) for index in range(len(case.tensors)))


def check(case: Case, session: Session, paper_epsilon: bool) -> Agreement:
    """Makes the steps that `bench.worker` has not made yet and compares.

    The session must have made its first step with gradient 0 (the worker times it: it is the one that
    compiles).
    """
    placed = GRADIENTS[0]
    for which in GRADIENTS[1:]:
        if which != placed:
            session.synchronise()
            give_gradients(case, session, which)
            placed = which
        session.step()
    session.synchronise()
    errors = [_error(case, index, actual, paper_epsilon) for index, actual in enumerate(session.parameters())]
    worst = max(range(len(errors)), key=lambda i: _nan_last(errors[i]))
    compared = sum(_sampled_size(tensor.elements) for tensor in case.tensors)
    return Agreement(len(GRADIENTS), compared, errors[worst], case.tensors[worst].name)


def _error(case: Case, index: int, actual: np.ndarray, paper_epsilon: bool) -> float:
    import numpy as np

    start = _sampled(parameter(case, index))
    of_set = {which: _sampled(gradient(case, index, which)) for which in set(GRADIENTS)}
    gradients: Sequence[np.ndarray] = [of_set[which] for which in GRADIENTS]
    algorithm = case.algorithm
    expected = algorithm.reference(start, gradients, algorithm.hyperparameters, paper_epsilon)
    if actual.shape != case.tensors[index].shape:
        return float("inf")
    return float(np.max(np.abs(_sampled(actual) - expected)) / np.max(np.abs(expected - start)))


def _nan_last(error: float) -> float:
    return float("inf") if error != error else error


def _stride(size: int) -> int:
    """Odd, so that rows of even length are not met in the same columns only."""
    return -(-size // MOST_ELEMENTS) | 1


def _sampled_size(size: int) -> int:
    return -(-size // _stride(size))


def _sampled(array: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1)[:: _stride(array.size)].astype(np.float64)
