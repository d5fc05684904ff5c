"""Matrix functions of rules that precondition each dim of a gradient: products, QR and loops, on any array namespace.

TensorFlow's meshes have no other decomposition than QR.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optim.errors import MismatchError
from optim.rule import Slot

MOST_DIMS = 6
"""The largest rank of a variable: each dim has its own slots."""
CLOSE = 1e-4
"""Largest error of an inverse root, after which two more iterations reach the limit of float64."""
MOST_ITERATIONS = 100
NOISE = 1e-6
"""Eigenvalues below this share of the largest are rounding errors of float32."""


def of_dims(name: str, unit: str) -> tuple[Slot, ...]:
    """Return the slots `name_0`, `name_1`, ...: one square matrix for each dim of a variable."""
    return tuple(Slot(f"{name}_{dim}", unit=unit, like=dim) for dim in range(MOST_DIMS))


def check_rank(shape: Sequence[int], names: Sequence[str], owner: str) -> None:
    """Raise MismatchError: a variable has more dims than there are slots."""
    if len(shape) > MOST_DIMS:
        raise MismatchError(
            f"{', '.join(names)} has {len(shape)} dims, and {owner} preconditions at most {MOST_DIMS}. Train it with"
            " another optimizer: see optim.Groups"
        )


def cond(xp: Any, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """Return the result of one of two functions; only that one runs."""
    if isinstance(condition, bool):
        return yes() if condition else no()
    return xp.cond(condition, yes, no)


def unfolded(xp: Any, x: Any, size: int) -> Any:
    """Return an array as a matrix whose rows are those of its first dim, which has that size."""
    return xp.reshape(x, [size, -1])


def eye(xp: Any, size: int, like: Any) -> Any:
    """Return the identity matrix in the dtype of `like`."""
    return xp.cast(np.eye(size), like.dtype)


def bound(xp: Any, matrix: Any) -> Any:
    """Return the largest sum of magnitudes of a row, which no eigenvalue exceeds."""
    return xp.reduce_max(xp.reduce_sum(xp.abs(matrix), axis=1))


def inverse_root(xp: Any, matrix: Any, size: int, root: int) -> Any:
    """Return A^(−1/root) of a symmetric positive matrix A by the coupled Newton iteration.

    Guo & Higham, "A Schur-Newton method for the matrix pth root and its inverse" (2006), as in Anil et al., "Scalable
    Second Order Optimization for Deep Learning" (2020). It ends early if rounding errors grow.
    """
    one = eye(xp, size, matrix)
    scale = (1.0 + root) / (2.0 * bound(xp, matrix))

    def error(m: Any) -> Any:
        return xp.reduce_max(xp.abs(m - one))

    def improves(m: Any, x: Any, now: Any, before: Any, count: Any) -> Any:
        is_useful = xp.logical_and(now > CLOSE, now < 1.2 * before)
        return xp.logical_and(is_useful, count < MOST_ITERATIONS)

    def step(m: Any, x: Any) -> tuple[Any, Any]:
        factor = ((1.0 + root) * one - m) / root
        return xp.matmul(_power(xp, factor, root), m), xp.matmul(x, factor)

    def body(m: Any, x: Any, now: Any, before: Any, count: Any) -> tuple[Any, ...]:
        m, x = step(m, x)
        return m, x, error(m), now, count + 1.0

    m, x = matrix * scale, one * scale ** (1.0 / root)
    now = error(m)
    m, x, *_ = xp.while_loop(improves, body, (m, x, now, 2.0 * now, 0.0 * now))
    for _ in range(2):
        m, x = step(m, x)
    return x


def _power(xp: Any, matrix: Any, exponent: int) -> Any:
    """Return a matrix to the power of an integer >= 1 by squaring."""
    if exponent == 1:
        return matrix
    half = _power(xp, matrix, exponent // 2)
    square = xp.matmul(half, half)
    return xp.matmul(square, matrix) if exponent % 2 else square


def orthonormal(xp: Any, matrix: Any, size: int) -> Any:
    """Return Q of the QR decomposition whose R has no negative number on its diagonal, which is the only one."""
    q, r = xp.qr(matrix)
    diagonal = xp.reduce_sum(r * eye(xp, size, r), axis=0)
    one = xp.ones_like(diagonal)
    return q * xp.where(diagonal < 0.0, -one, one)


def power_iterations(xp: Any, matrix: Any, basis: Any, size: int, count: int) -> Any:
    """Return an orthonormal basis that is closer to the eigenvectors by `count` steps of orthogonal iteration."""

    def closer(now: Any) -> Any:
        return orthonormal(xp, xp.matmul(matrix, now), size)

    if count == 1 or getattr(xp, "unrolls", True):
        for _ in range(count):
            basis = closer(basis)
        return basis
    number = 0.0 * bound(xp, matrix)
    return xp.while_loop(
        lambda now, number: number < count, lambda now, number: (closer(now), number + 1.0), (basis, number)
    )[0]


def descending(xp: Any, values: Any, size: int) -> Any:
    """Return the matrix that permutes rows so that these values descend; values that are noise keep their order."""
    largest = xp.reduce_max(values)
    values = xp.where(values < NOISE * largest, xp.zeros_like(values), values)
    rows, columns = xp.expand_dims(values, 1), xp.expand_dims(values, 0)
    one = eye(xp, size, values)
    earlier = xp.cast(np.tri(size, k=-1), values.dtype)  # column before row
    full = xp.ones_like(one)
    before = xp.where(columns > rows, full, xp.where(xp.equal(columns, rows), earlier, 0.0 * full))
    place = xp.reduce_sum(before, axis=1)
    wanted = xp.cast(np.arange(size).reshape(-1, 1), values.dtype)
    return xp.where(xp.equal(wanted + 0.0 * full, xp.expand_dims(place, 0) + 0.0 * full), full, 0.0 * full)
