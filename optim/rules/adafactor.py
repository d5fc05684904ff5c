"""Adafactor: Adam's second moment as the product of its row and column means.

    q = g² + ε₁        β = 1 − t^γ        ρ = min(lr, 1/√t)
    from rank 2 on, over the last two dims:
        r ← β·r + (1−β)·mean(q, over columns)        c ← β·c + (1−β)·mean(q, over rows)        V = r·c / mean(r)
    below:  v ← β·v + (1−β)·q,  V = v
    u = g / √V        p ← p − max(ε₂, rms(p)) · ρ · u / max(1, rms(u)/d)

Shazeer & Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (2018), algorithms 4 and 5 with the
constants of algorithm 6: γ = `beta_2_decay`, d = `clip_threshold`. Keras 2.12 to 3 and tf_keras (`optimizers/
adafactor.py`) compute the same; they also keep V of factored variables as a slot, which is never read before it
is overwritten, so here it is not a slot. Their `relative_step` changes nothing, because they cap ρ either way; without
`learning_rate_cap`, ρ = lr.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, choice, rate
from optim.errors import HyperparameterError
from optim.rule import COLUMNS, ROWS, UNFACTORED, Arrays, Scalars, Slot, Whole


@dataclass(frozen=True)
class AdafactorRule(Whole):
    learning_rate = rate()
    beta_2_decay = Hyperparameter(
        -0.8, "γ in the decay rate 1 − t^γ of the means", low=-math.inf, high=0.0, closed=True
    )
    epsilon_1 = Hyperparameter(1e-30, "added to squared gradients")
    epsilon_2 = Hyperparameter(1e-3, "the least root mean square of a variable that is used")
    clip_threshold = Hyperparameter(
        1.0, "the greatest root mean square of a step before it is scaled", low=math.ulp(0.0)
    )
    relative_step: bool = choice(
        True,
        "as in Keras, which documents that False keeps the learning rate, but caps it at 1/√t anyway. So"
        " False alone changes nothing here, either, and warns; `learning_rate_cap` removes the cap",
        keyword=False,
    )
    learning_rate_cap: bool = choice(True, "cap the learning rate at 1/√t. False needs `relative_step=False`")

    @classmethod
    def from_arguments(cls, choices: Mapping[str, Any], hyper: Mapping[str, Any]) -> AdafactorRule:
        if choices["relative_step"] and not choices["learning_rate_cap"]:
            raise HyperparameterError(
                "learning_rate_cap=False contradicts relative_step=True: pass relative_step=False"
            )
        if not choices["relative_step"] and choices["learning_rate_cap"]:
            warnings.warn("relative_step=False alone changes nothing; see learning_rate_cap", UserWarning, 3)
        return cls(**choices)

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (
            Slot("r", unit="gradient^2", like=ROWS, nonnegative=True),
            Slot("c", unit="gradient^2", like=COLUMNS, nonnegative=True),
            Slot("v", unit="gradient^2", like=UNFACTORED, nonnegative=True),
        )

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        rest = step ** hyper["beta_2_decay"]
        lr = hyper["learning_rate"]
        return {
            "rho": xp.minimum(1.0 / xp.sqrt(step), lr) if self.learning_rate_cap else lr,
            "beta_2": 1.0 - rest,
            "one_minus_beta_2": rest,
            "epsilon_1": hyper["epsilon_1"],
            "epsilon_2": hyper["epsilon_2"],
            "clip_threshold": hyper["clip_threshold"],
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        squares = xp.square(gradient) + c["epsilon_1"]
        if len(variable.shape) < 2:
            v = c["beta_2"] * slots["v"] + c["one_minus_beta_2"] * squares
            new, direction = {"v": v}, gradient / xp.sqrt(v)
        else:
            r = c["beta_2"] * slots["r"] + c["one_minus_beta_2"] * xp.reduce_mean(squares, axis=-1)
            columns = c["beta_2"] * slots["c"] + c["one_minus_beta_2"] * xp.reduce_mean(squares, axis=-2)
            new = {"r": r, "c": columns}
            # Root by root: with ε₁ = 1e-30 the product r·c of a zero gradient would underflow in float32.
            rows = 1.0 / xp.sqrt(r / xp.reduce_mean(r, axis=-1, keepdims=True))
            direction = gradient * xp.expand_dims(rows, -1) * xp.expand_dims(1.0 / xp.sqrt(columns), -2)
        size = xp.maximum(_rms(xp, variable), c["epsilon_2"])
        excess = xp.maximum(_rms(xp, direction) / c["clip_threshold"], 1.0)
        return -(c["rho"] * size / excess) * direction, new


def _rms(xp: Any, x: Any) -> Any:
    return xp.sqrt(xp.reduce_mean(xp.square(x)))
