"""Conditional gradient (Frank-Wolfe): each variable moves towards the point of a ball where its gradient is least.

    p ← lr·p − (1 − lr)·λ·s
    s = g/(‖g‖ + ε), of the Frobenius norm,  or  s = u·vᵀ, of the nuclear norm

with u and v the first singular vectors of g; the learning rate is the part of p that stays. Ravi, Dinh, Lokhande &
Singh, "Constrained Deep Learning using Conditional Gradient and Applications in Computer Vision" (2018), section 3;
`ConditionalGradient` of TensorFlow Addons 0.19 (`optimizers/conditional_gradient.py`). There a gradient of rank
below 2 is one row, and a gradient of zeros has u·vᵀ = 1 in its first element, as LAPACK has it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, choice, one_of
from optim.errors import HyperparameterError
from optim.rule import Arrays, Scalars, Whole

FROBENIUS, NUCLEAR = "fro", "nuclear"
SQUARINGS = 36
"""Number of squarings of g·gᵀ, after which a second singular value that is smaller by a part of 1e-9 is gone."""


@dataclass(frozen=True)
class ConditionalGradientRule(Whole):
    learning_rate = Hyperparameter(
        None, "float in [0, 1], scalar tensor, schedule or zero-argument callable: the part of a variable that remains"
    )
    lambda_ = Hyperparameter(0.01, "λ, the radius of the ball")
    epsilon = Hyperparameter(1e-07, "added to the Frobenius norm")
    ord: str = choice(
        FROBENIUS,
        "the norm of the ball, `'fro'` or `'nuclear'`; the latter is of matrices and vectors",
        one_of(FROBENIUS, NUCLEAR),
        keyword=False,
    )

    def constants(self, shape: Sequence[int], names: Sequence[str]) -> Mapping[str, float]:
        if self.ord == NUCLEAR and len(shape) > 2:
            raise HyperparameterError(
                f"{', '.join(names)} has shape {list(shape)}, but ord='nuclear' is a norm of matrices: train it with"
                " another optimizer, or use ord='fro'"
            )
        return {}

    def gathers(self, slots: Collection[str]) -> bool:
        return self.ord == NUCLEAR

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        if self.ord == NUCLEAR:
            direction = _first_singular(xp, gradient)
        else:
            direction = gradient / (_norm(xp, gradient) + c["epsilon"])
        gone = 1.0 - c["learning_rate"]
        return -gone * (variable + c["lambda_"] * direction), {}


def _norm(xp: Any, x: Any) -> Any:
    return xp.sqrt(xp.reduce_sum(xp.square(x)))


def _first_singular(xp: Any, gradient: Any) -> Any:
    """Return u·vᵀ of the largest singular value, by squaring g·gᵀ until only that remains."""
    shape = [int(n) for n in gradient.shape]
    rest = xp.reshape(xp.zeros_like(gradient), [-1])
    first = xp.reshape(xp.concat([xp.ones_like(rest[:1]), rest[1:]], 0), shape)
    size = xp.reduce_sum(xp.abs(gradient))  # squares alone could vanish
    missing = xp.where(size > 0.0, xp.zeros_like(size), xp.ones_like(size))
    g = gradient / (size + missing) + missing * first
    if len(shape) < 2:
        return g / _norm(xp, g)
    wide = shape[0] <= shape[1]
    g = g if wide else xp.transpose(g)
    square = xp.matmul(g, xp.transpose(g))
    for _ in range(SQUARINGS):
        square = square / _norm(xp, square)
        square = xp.matmul(square, square)
    vector = xp.matmul(square, g)
    vector = vector / _norm(xp, vector)
    return vector if wide else xp.transpose(vector)
