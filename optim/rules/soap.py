"""SOAP: Adam in the eigenbasis of Shampoo's preconditioners.

    for each dim d, with G_d the gradient as a matrix whose rows are those of dim d and R(x) = x ×₀ Q₀ ×₁ Q₁ ...:
        m ← β₁·m + (1−β₁)·g        v ← β₂·v + (1−β₂)·R(g)²        α_t = lr · √(1−β₂ᵗ) / (1−β₁ᵗ)
        p ← p − α_t · R⁻¹( R(m) / (√v + ε) )
        L_d ← β·L_d + (1−β)·G_d·G_dᵀ,  and every `precondition_frequency` steps, by descending eigenvalues,
        Q_d ← QR(L_d·Q_d)

Vyas et al., "SOAP: Improving and Stabilizing Shampoo using Adam" (2024, arXiv:2409.11321), algorithms 3 and 4, in the
order of the authors' code (github.com/nikhilvyas/SOAP): the first gradient makes L_d and Q_d alone, and moves nothing,
so t counts from the second step. The first Q_d there has the eigenvectors of L_d; here it is what `first_iterations` of
the same iteration make of the identity. A dim over `max_preconditioner_dim` has no Q_d, and vectors have one only with
`precondition_1d`. `damping` · (largest row sum of L_d) · I is added to L_d in each QR, which changes no eigenvector.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ulp
from typing import Any

from optim.arguments import Hyperparameter, choice, count, iterations, rate
from optim.rule import Arrays, Scalars, Slot, Whole
from optim.rules import matrices

STATISTICS, BASIS = "statistics", "basis"


@dataclass(frozen=True)
class SOAPRule(Whole):
    learning_rate = rate(0.003)
    beta_1 = Hyperparameter(0.95, "decay rate of the mean of gradients", high=1.0)
    beta_2 = Hyperparameter(0.95, "decay rate of the mean of squared gradients in the eigenbasis", high=1.0)
    epsilon = Hyperparameter(1e-08, "added to the root", low=ulp(0.0))
    shampoo_beta = Hyperparameter(0.95, "β, decay rate of the preconditioners", high=1.0, keyword=True)
    damping = Hyperparameter(
        1e-6,
        "distinguishes directions without gradients from rounding errors, see the rule's file",
        keyword=True,
    )
    precondition_frequency: int = choice(10, "number of steps between two QR decompositions", count)
    max_preconditioner_dim: int = choice(10000, "the largest dim that has an eigenbasis", count)
    precondition_1d: bool = choice(False, "whether vectors have an eigenbasis")
    bias_correction: bool = choice(True, "False leaves out √(1−β₂ᵗ)/(1−β₁ᵗ)")
    first_iterations: int = choice(30, "number of iterations that make the first eigenbasis, up to 1000", iterations)

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (
            Slot("m", unit="gradient"),
            Slot("v", unit="gradient^2", nonnegative=True),
            *matrices.of_dims(STATISTICS, "gradient^2"),
            *matrices.of_dims(BASIS, "1"),
        )

    def slot_dims(self, slot: Slot, shape: Sequence[int], names: Sequence[str]) -> tuple[int, ...] | None:
        if not isinstance(slot.like, int):
            return super().slot_dims(slot, shape, names)
        matrices.check_rank(shape, names, "SOAP")
        return (slot.like, slot.like) if self._has_basis(shape, slot.like) else None

    def _has_basis(self, shape: Sequence[int], dim: int) -> bool:
        is_used = len(shape) > 1 or self.precondition_1d
        return is_used and dim < len(shape) and shape[dim] <= self.max_preconditioner_dim

    def gathers(self, slots: Collection[str]) -> bool:
        return True

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        beta_1, beta_2, one = hyper["beta_1"], hyper["beta_2"], xp.ones_like(step)
        alpha, before = hyper["learning_rate"], step - 1.0
        if self.bias_correction:
            counted = xp.maximum(before, one)
            alpha = alpha * xp.sqrt(1.0 - beta_2**counted) / (1.0 - beta_1**counted)
        late = before % float(self.precondition_frequency)
        return {
            "alpha": alpha,
            "one_minus_beta_1": 1.0 - beta_1,
            "one_minus_beta_2": 1.0 - beta_2,
            "one_minus_shampoo_beta": 1.0 - hyper["shampoo_beta"],
            "epsilon": hyper["epsilon"],
            "damping": hyper["damping"],
            "is_late": xp.where(before > 0.5 * one, one, 0.0 * one),
            "is_basis_step": xp.where(xp.equal(late, 0.0 * one), one, 0.0 * one),
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        shape = [int(size) for size in gradient.shape]
        dims = [dim for dim in range(len(shape)) if self._has_basis(shape, dim)]
        bases = {dim: slots[f"{BASIS}_{dim}"] for dim in dims}
        moves, is_new = c["is_late"], None
        if dims:
            size = xp.reduce_max(xp.abs(bases[dims[0]]))  # a variable whose first gradient comes late has no basis yet
            is_new, one = size <= 0.0, xp.ones_like(size)
            moves = xp.where(is_new, 0.0 * one, one)
        projected = _along(xp, gradient, bases)
        m = slots["m"] + moves * c["one_minus_beta_1"] * (gradient - slots["m"])
        v = slots["v"] + moves * c["one_minus_beta_2"] * (xp.square(projected) - slots["v"])
        direction = _along(xp, m, bases) / (xp.sqrt(v) + c["epsilon"])
        back = _along(xp, direction, {dim: xp.transpose(basis) for dim, basis in bases.items()})
        new = {"m": m, "v": v}
        if dims:
            totals = self._totals(xp, gradient, dims, slots, c)
            v_and_bases = self._bases(xp, totals, bases, v, is_new, c)
            new |= {"v": v_and_bases[0], **{f"{STATISTICS}_{dim}": total for dim, total in totals.items()}}
            new |= {f"{BASIS}_{dim}": basis for dim, basis in zip(dims, v_and_bases[1:], strict=True)}
        return -c["alpha"] * moves * back, new

    def _totals(self, xp: Any, gradient: Any, dims: Sequence[int], slots: Arrays, c: Scalars) -> dict[int, Any]:
        """Return the new preconditioners by dim."""
        totals = {}
        for dim in dims:
            rows = matrices.unfolded(xp, _first(xp, gradient, dim), int(gradient.shape[dim]))
            old = slots[f"{STATISTICS}_{dim}"]
            totals[dim] = old + c["one_minus_shampoo_beta"] * (xp.matmul(rows, xp.transpose(rows)) - old)
        return totals

    def _damped(self, xp: Any, total: Any, size: int, c: Scalars) -> Any:
        return total + c["damping"] * matrices.bound(xp, total) * matrices.eye(xp, size, total)

    def _bases(
        self, xp: Any, totals: dict[int, Any], bases: dict[int, Any], v: Any, is_new: Any, c: Scalars
    ) -> tuple[Any, ...]:
        """Return v and the bases after this step: v follows the eigenvectors when their order changes."""
        sizes = {dim: int(total.shape[0]) for dim, total in totals.items()}
        damped = {dim: self._damped(xp, total, sizes[dim], c) for dim, total in totals.items()}

        def first() -> tuple[Any, ...]:
            new_bases = []
            for dim, size in sizes.items():
                one = matrices.eye(xp, size, v)
                new_bases.append(matrices.power_iterations(xp, damped[dim], one, size, self.first_iterations))
            return (v, *new_bases)

        def renewed() -> tuple[Any, ...]:
            places, new_bases = {}, []
            for dim, size in sizes.items():
                basis = bases[dim]
                values = xp.reduce_sum(basis * xp.matmul(totals[dim], basis), axis=0)
                places[dim] = xp.transpose(matrices.descending(xp, values, size))
                new_bases.append(matrices.power_iterations(xp, damped[dim], xp.matmul(basis, places[dim]), size, 1))
            return (_along(xp, v, places), *new_bases)

        def same() -> tuple[Any, ...]:
            return (v, *bases.values())

        def later() -> tuple[Any, ...]:
            return tuple(matrices.cond(xp, c["is_basis_step"] > 0.5, renewed, same))

        return tuple(matrices.cond(xp, is_new, first, later))


def _first(xp: Any, x: Any, dim: int) -> Any:
    """Return an array with one of its dims in front."""
    return xp.transpose(x, (dim, *(other for other in range(len(x.shape)) if other != dim))) if dim else x


def _along(xp: Any, x: Any, factors: dict[int, Any]) -> Any:
    """Return an array of which each of these dims is multiplied by the columns of its matrix."""
    shape = [int(size) for size in x.shape]
    for dim, factor in factors.items():
        moved = [dim, *(other for other in range(len(shape)) if other != dim)]
        product = xp.matmul(xp.transpose(factor), matrices.unfolded(xp, _first(xp, x, dim), shape[dim]))
        product = xp.reshape(product, [shape[other] for other in moved])
        x = xp.transpose(product, tuple(moved.index(other) for other in range(len(shape)))) if dim else product
    return x
