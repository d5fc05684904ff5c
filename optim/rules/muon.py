"""Muon: momentum made orthogonal, for matrices; Adam for everything else.

    m ← μ·m + g        x = g + μ·m (Nesterov)  or  m        x ← x / (‖x‖ + 1e-7)
    n times:  A = x·xᵀ,  x ← a·x + (b·A + c·A²)·x        p ← p − lr · s·√max(rows, columns) · x

Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), with its quintic Newton-Schulz
iteration on the smaller side; the factor s = `rms_rate` from Liu et al., "Muon is Scalable for LLM Training" (2025),
section 2.2. As in Keras 3 (`optimizers/muon.py`), a variable with a slot `v` is one that Adam updates (see
`AdamRule`), with learning rate lr · `adam_lr_ratio`.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from optim.rule import Arrays, Scalars, Slot, Whole
from optim.rules.adam import AdamRule

ADAM = "adam_"


@dataclass(frozen=True)
class MuonRule(Whole):
    """`ns_steps`: number of iterations, n above. `rms_rate`: s above, None leaves the factor of x out."""

    nesterov: bool = True
    ns_steps: int = 5
    rms_rate: float | None = 0.2

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot("m", unit="gradient"), Slot("v", unit="gradient^2"))

    def gathers(self, slots: Collection[str]) -> bool:
        return "v" not in slots

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        adam = {
            "learning_rate": hyper["learning_rate"] * hyper["adam_lr_ratio"],
            "beta_1": hyper["adam_beta_1"],
            "beta_2": hyper["adam_beta_2"],
            "epsilon": hyper["epsilon"],
        }
        own = {"lr": hyper["learning_rate"], **{k: hyper[k] for k in ("momentum", "muon_a", "muon_b", "muon_c")}}
        return own | {ADAM + name: value for name, value in AdamRule().coefficients(xp, adam, step).items()}

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        if "v" in slots:
            adam = {name.removeprefix(ADAM): value for name, value in c.items() if name.startswith(ADAM)}
            return AdamRule().update(xp, variable, gradient, slots, adam)
        m = c["momentum"] * slots["m"] + gradient
        direction = self._orthogonal(xp, gradient + c["momentum"] * m if self.nesterov else m, c)
        rows, columns = (int(n) for n in variable.shape)
        factor = 1.0 if self.rms_rate is None else self.rms_rate * math.sqrt(max(rows, columns))
        return -(c["lr"] * factor) * direction, {"m": m}

    def _orthogonal(self, xp: Any, x: Any, c: Scalars) -> Any:
        """About U·Vᵀ of the singular value decomposition U·S·Vᵀ of a matrix."""
        wide = int(x.shape[0]) <= int(x.shape[1])
        x = x if wide else xp.transpose(x)
        x = x / (xp.sqrt(xp.reduce_sum(xp.square(x))) + 1e-7)
        for _ in range(self.ns_steps):
            a = xp.matmul(x, xp.transpose(x))
            x = c["muon_a"] * x + xp.matmul(c["muon_b"] * a + c["muon_c"] * xp.matmul(a, a), x)
        return x if wide else xp.transpose(x)
