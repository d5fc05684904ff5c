"""SOAP, in float64 NumPy.

Vyas et al. (2024), algorithm 3, and 4 for the eigenbases, in the order of the authors' code: the first gradient makes
the bases and no step, and a basis is renewed after the step. `basis` holds the eigenvectors in its columns. Where the
authors have an eigendecomposition, the first basis is that of orthogonal iterations from the identity, of L + a ridge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.common import Array


@dataclass(frozen=True)
class SOAP:
    beta_1: float = 0.95
    beta_2: float = 0.95
    epsilon: float = 1e-8
    shampoo_beta: float = 0.95
    damping: float = 1e-6
    precondition_frequency: int = 10
    max_preconditioner_dim: int = 10000
    precondition_1d: bool = False
    bias_correction: bool = True
    first_iterations: int = 30

    def _dims(self, shape: tuple[int, ...]) -> list[int]:
        if len(shape) == 1 and not self.precondition_1d:
            return []
        return [dim for dim, size in enumerate(shape) if size <= self.max_preconditioner_dim]

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        matrices = {f"{n}_{d}": np.zeros((shape[d],) * 2) for d in self._dims(shape) for n in ("statistics", "basis")}
        return {"m": np.zeros(shape), "v": np.zeros(shape), **matrices}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        dims = self._dims(value.shape)
        is_new = not slots[f"basis_{dims[0]}"].any() if dims else number == 1
        if not is_new:
            value = value - rate * self._change(gradient, slots, dims, max(number - 1, 1))
        for d in dims:
            axes = [other for other in range(value.ndim) if other != d]
            product = np.tensordot(gradient, gradient, (axes, axes))
            slots[f"statistics_{d}"] = self.shampoo_beta * slots[f"statistics_{d}"] + (1 - self.shampoo_beta) * product
            self._renew(slots, d, is_new, number - 1)
        return value

    def _change(self, gradient: Array, slots: dict[str, Array], dims: list[int], number: int) -> Array:
        slots["m"] = self.beta_1 * slots["m"] + (1 - self.beta_1) * gradient
        slots["v"] = self.beta_2 * slots["v"] + (1 - self.beta_2) * _rotated(gradient, slots, dims) ** 2
        direction = _rotated(slots["m"], slots, dims) / (np.sqrt(slots["v"]) + self.epsilon)
        for d in dims:
            direction = np.moveaxis(np.tensordot(slots[f"basis_{d}"], direction, ([1], [d])), 0, d)
        if not self.bias_correction:
            return direction
        return direction * np.sqrt(1 - self.beta_2**number) / (1 - self.beta_1**number)

    def _renew(self, slots: dict[str, Array], d: int, is_new: bool, number: int) -> None:
        total = slots[f"statistics_{d}"]
        damped = total + self.damping * np.abs(total).sum(axis=1).max() * np.eye(len(total))
        if is_new:
            basis = np.eye(len(total))
            for _ in range(self.first_iterations):
                basis = _orthonormal(damped @ basis)
            slots[f"basis_{d}"] = basis
        elif number % self.precondition_frequency == 0:
            basis = slots[f"basis_{d}"]
            values = np.einsum("ij,ik,kj->j", basis, total, basis)
            values[values < 1e-6 * values.max()] = 0.0
            order = np.argsort(-values, kind="stable")
            slots["v"] = np.take(slots["v"], order, axis=d)
            slots[f"basis_{d}"] = _orthonormal(damped @ basis[:, order])


def _rotated(x: Array, slots: dict[str, Array], dims: list[int]) -> Array:
    for d in dims:
        x = np.moveaxis(np.tensordot(slots[f"basis_{d}"], x, ([0], [d])), 0, d)
    return x


def _orthonormal(matrix: Array) -> Array:
    """Gram-Schmidt, twice, which leaves each column its sign."""
    found = np.zeros_like(matrix)
    for k in range(len(matrix)):
        column = matrix[:, k]
        for _ in range(2):
            column = column - found[:, :k] @ (found[:, :k].T @ column)
        found[:, k] = column / np.linalg.norm(column)
    return found
