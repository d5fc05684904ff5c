"""Shampoo: a gradient preconditioned by a matrix for each of its dims, as full-matrix AdaGrad would do by one for all.

    for each dim d of the k dims, with G_d the gradient as a matrix whose rows are those of dim d:
        L_d ← β₂·L_d + w·G_d·G_dᵀ  (w = 1 for β₂ = 1, else 1 − β₂)      P_d = (L_d + ridge·I)^(−1/2k)
    m ← μ·m + g        p ← p − lr · m ×₀ P₀ ×₁ P₁ ...

Gupta, Koren & Singer, "Shampoo: Preconditioned Stochastic Tensor Optimization" (2018), algorithms 1 and 2. Anil et
al., "Scalable Second Order Optimization for Deep Learning" (2020): β₂ < 1, roots that are computed again every few
steps, and a ridge that is a share of L_d. A dim that is larger than `max_preconditioner_dim` has the diagonal of L_d
alone, as in `tf.contrib.opt.ShampooOptimizer`. A scalar is a vector of one number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ulp
from typing import Any

from optim.arguments import Hyperparameter, choice, count, rate, used
from optim.rule import Arrays, Scalars, Slot, Whole
from optim.rules import matrices

STATISTICS, ROOT = "statistics", "root"


@dataclass(frozen=True)
class ShampooRule(Whole):
    learning_rate = rate()
    beta_2 = Hyperparameter(
        1.0, "decay rate of the preconditioners; 1 adds up, as the paper does", high=1.0, closed=True
    )
    momentum = Hyperparameter(0.0, "μ", high=1.0)
    epsilon = Hyperparameter(1e-6, "the ridge, see `relative_epsilon`", low=ulp(0.0))
    precondition_frequency: int = choice(
        10, "number of steps between two computations of the roots, of which the first is at the first step", count
    )
    max_preconditioner_dim: int = choice(
        2048, "the largest dim that has a matrix; larger ones have the diagonal of it", count
    )
    relative_epsilon: bool = choice(
        True, "the ridge is `epsilon` times the largest row sum of a preconditioner; False: it is `epsilon`"
    )
    has_momentum: bool = False

    @classmethod
    def from_arguments(cls, choices: Mapping[str, Any], hyper: Mapping[str, Any]) -> ShampooRule:
        return cls(**choices, has_momentum=used(hyper["momentum"]))

    @property
    def slots(self) -> tuple[Slot, ...]:
        momentum = (Slot("m", unit="gradient", few_bits=True),) if self.has_momentum else ()
        roots = matrices.of_dims(ROOT, "gradient^(-1/dims)")
        return (*momentum, *matrices.of_dims(STATISTICS, "gradient^2"), *roots)

    def slot_dims(self, slot: Slot, shape: Sequence[int], names: Sequence[str]) -> tuple[int, ...] | None:
        if not isinstance(slot.like, int):
            return super().slot_dims(slot, shape, names)
        matrices.check_rank(shape, names, "Shampoo")
        dim, is_root = slot.like, slot.name.startswith(ROOT)
        if dim >= max(1, len(shape)) or (is_root and not self._has_matrix(shape, dim)):
            return None
        if len(shape) == 0:
            return ()
        return (dim, dim) if self._has_matrix(shape, dim) else (dim,)

    def _has_matrix(self, shape: Sequence[int], dim: int) -> bool:
        return dim < len(shape) and shape[dim] <= self.max_preconditioner_dim

    def gathers(self, slots: Collection[str]) -> bool:
        return True

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        beta_2, one = hyper["beta_2"], xp.ones_like(step)
        late = (step - 1.0) % float(self.precondition_frequency)
        return {
            "lr": hyper["learning_rate"],
            "momentum": hyper["momentum"],
            "beta_2": beta_2,
            "weight": xp.where(xp.equal(beta_2 * one, one), one, one - beta_2),
            "epsilon": hyper["epsilon"],
            "is_root_step": xp.where(xp.equal(late, 0.0 * one), one, 0.0 * one),
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        shape = [int(size) for size in gradient.shape]
        dims = shape or [1]
        direction, new = gradient, {}
        if self.has_momentum:
            direction = new["m"] = c["momentum"] * slots["m"] + gradient
        for dim, size in enumerate(dims):  # each turn moves the first dim to the end
            rows = matrices.unfolded(xp, gradient, size)
            name = f"{STATISTICS}_{dim}"
            is_matrix = self._has_matrix(shape, dim)
            products = xp.matmul(rows, xp.transpose(rows)) if is_matrix else xp.reduce_sum(xp.square(rows), axis=1)
            products = xp.reshape(products, slots[name].shape)
            total = new[name] = c["beta_2"] * slots[name] + c["weight"] * products
            turned = xp.transpose(matrices.unfolded(xp, direction, size))
            if is_matrix:
                root = new[f"{ROOT}_{dim}"] = self._root(xp, total, slots[f"{ROOT}_{dim}"], size, 2 * len(dims), c)
                turned = xp.matmul(turned, root)
            else:
                ridge = c["epsilon"] * (self._scale(xp, xp.reduce_max(total)) if self.relative_epsilon else 1.0)
                turned = turned * xp.reshape((total + ridge) ** (-0.5 / len(dims)), [1, size])
            order = [*dims[dim + 1 :], *dims[: dim + 1]]
            direction, gradient = xp.reshape(turned, order), xp.reshape(xp.transpose(rows), order)
        return -c["lr"] * xp.reshape(direction, shape), new

    def _scale(self, xp: Any, largest: Any) -> Any:
        """Return what `epsilon` is a share of; preconditioners that are zero have a root, too."""
        return xp.maximum(largest, 1e-30 * xp.ones_like(largest))

    def _root(self, xp: Any, total: Any, old: Any, size: int, root: int, c: Scalars) -> Any:
        def compute() -> Any:
            ridge = c["epsilon"] * (self._scale(xp, matrices.bound(xp, total)) if self.relative_epsilon else 1.0)
            return matrices.inverse_root(xp, total + ridge * matrices.eye(xp, size, total), size, root)

        if self.precondition_frequency == 1:
            return compute()
        is_new = xp.reduce_max(xp.abs(old)) <= 0.0  # a variable whose first gradient comes later
        return matrices.cond(xp, xp.logical_or(c["is_root_step"] > 0.5, is_new), compute, lambda: old)
