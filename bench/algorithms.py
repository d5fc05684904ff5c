"""The optimizers that can be measured: hyperparameters, state, bytes moved, and a float64 reference.

The references are written here from the papers and share nothing with `optim`: they judge it. Bytes per
float32 parameter are those of one fused pass in place, every array read or written once
(`docs/benchmarks.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.errors import UnknownNameError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray
    Reference = Callable[[Array, Sequence[Array], Mapping[str, float], bool], Array]


@dataclass(frozen=True)
class Algorithm:
    """One optimizer.

    Attributes:
      name: as `-o` takes it.
      hyperparameters: by Keras' names.
      slots: arrays of state per parameter.
      bytes_per_parameter: least traffic of one step, bytes.
      reference: (parameter, gradients of each step, hyperparameters, paper_epsilon) -> parameter, in float64.
    """

    name: str
    hyperparameters: Mapping[str, float]
    slots: int
    bytes_per_parameter: int
    reference: Reference


def _sgd(p: Array, gradients: Sequence[Array], hyper: Mapping[str, float], paper_epsilon: bool) -> Array:
    velocity = 0.0 * p
    for g in gradients:
        velocity = hyper.get("momentum", 0.0) * velocity + g
        p = p - hyper["learning_rate"] * velocity
    return p


def _adam(p: Array, gradients: Sequence[Array], hyper: Mapping[str, float], paper_epsilon: bool) -> Array:
    """Kingma & Ba (2015), algorithm 1 (`paper_epsilon`: ε joins the corrected √v̂) or, as Keras has it, the
    form at the end of its section 2, where ε joins the uncorrected √v."""
    b1, b2, epsilon = hyper["beta_1"], hyper["beta_2"], hyper["epsilon"]
    m = v = 0.0 * p
    for t, g in enumerate(gradients, start=1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        correction = (1 - b2**t) ** 0.5
        root = v**0.5 / correction + (epsilon if paper_epsilon else epsilon / correction)
        p = p - hyper["learning_rate"] * m / (1 - b1**t) / root
    return p


def _adadelta(p: Array, gradients: Sequence[Array], hyper: Mapping[str, float], paper_epsilon: bool) -> Array:
    """Zeiler (2012), algorithm 1, times the learning rate."""
    rho, epsilon = hyper["rho"], hyper["epsilon"]
    squares = moves = 0.0 * p
    for g in gradients:
        squares = rho * squares + (1 - rho) * g * g
        move = g * ((moves + epsilon) / (squares + epsilon)) ** 0.5
        moves = rho * moves + (1 - rho) * move * move
        p = p - hyper["learning_rate"] * move
    return p


ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm("adam", {"learning_rate": 1e-3, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}, 2, 28, _adam),
    Algorithm("sgd", {"learning_rate": 1e-2}, 0, 12, _sgd),
    Algorithm("momentum", {"learning_rate": 1e-2, "momentum": 0.9}, 1, 20, _sgd),
    Algorithm("adadelta", {"learning_rate": 1.0, "rho": 0.95, "epsilon": 1e-7}, 2, 28, _adadelta),
)


def algorithm(name: str) -> Algorithm:
    """The optimizer of that name. Raises: UnknownNameError."""
    for known in ALGORITHMS:
        if known.name == name:
            return known
    names = ", ".join(known.name for known in ALGORITHMS)
    raise UnknownNameError(f"no optimizer is called {name!r} in the benchmarks; there are: {names}")
