"""Shampoo, in float64 NumPy.

Gupta, Koren & Singer (2018), algorithm 2: H_i ← H_i + the contraction of the gradient with itself over all dims but i;
the step is the gradient times H_i^(−1/2k) along each of its k dims. Roots by the eigenvectors of H_i. Anil et al.
(2020): sums that decay, and roots at some steps only. The ridge is a number, or a share of the largest row sum of H_i.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class Shampoo:
    beta_2: float = 1.0
    momentum: float = 0.0
    epsilon: float = 1e-6
    precondition_frequency: int = 10
    max_preconditioner_dim: int = 2048
    relative_epsilon: bool = True

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        found = {"m": np.zeros(shape)} if self.momentum else {}
        for dim, size in enumerate(shape or (1,)):
            has_matrix = bool(shape) and size <= self.max_preconditioner_dim
            found[f"statistics_{dim}"] = np.zeros((size, size) if has_matrix else shape and (size,))
            if has_matrix:
                found[f"root_{dim}"] = np.zeros((size, size))
        return found

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        rank = max(1, value.ndim)
        direction = gradient
        if self.momentum:
            direction = slots["m"] = self.momentum * slots["m"] + gradient
        for dim in range(rank):
            axes = [other for other in range(value.ndim) if other != dim]
            statistics, root = f"statistics_{dim}", f"root_{dim}"
            if root in slots:
                product = np.tensordot(gradient, gradient, (axes, axes))
            else:
                product = np.sum(gradient**2, axis=tuple(axes)) if value.ndim else gradient**2
            weight = 1.0 if self.beta_2 == 1.0 else 1.0 - self.beta_2
            total = slots[statistics] = self.beta_2 * slots[statistics] + weight * product
            if root not in slots:
                factor = (total + self._ridge(np.max(total))) ** (-1 / (2 * rank))
                direction = direction * (factor.reshape([-1] + [1] * (rank - 1 - dim)) if value.ndim else factor)
                continue
            if (number - 1) % self.precondition_frequency == 0 or not slots[root].any():
                values, vectors = np.linalg.eigh(total)
                values = values + self._ridge(np.max(np.sum(np.abs(total), axis=1)))
                slots[root] = (vectors * values ** (-1 / (2 * rank))) @ vectors.T
            direction = np.moveaxis(np.tensordot(direction, slots[root], ([dim], [0])), -1, dim)
        return value - rate * direction

    def _ridge(self, largest: float) -> float:
        return self.epsilon * max(largest, 1e-30) if self.relative_epsilon else self.epsilon
