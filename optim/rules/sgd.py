"""Gradient descent, with classical or Nesterov momentum.

Without momentum:  p ← p − lr·g.
With momentum μ:   m ← μ·m − lr·g;  p ← p + m,  or with Nesterov  p ← p + μ·m − lr·g.
With lr outside:   m ← μ·m + g;  p ← p − lr·m,  or with Nesterov  p ← p − lr·(μ·m + g).

The learning rate is inside the slot in every Keras (Keras 1.0 `optimizers.py` to Keras 3 `sgd.py`), outside in
`tf.train.MomentumOptimizer`. Momentum: Sutskever et al., "On the importance of initialization and momentum in
deep learning" (2013), eqs. 1-2 and 3-4, the latter in the form that keeps p at the look-ahead point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optim.rule import Arrays, Elementwise, Scalars, Slot


@dataclass(frozen=True)
class SGDRule(Elementwise):
    """`keeps_momentum`: whether the slot m exists (with μ = 0 it is the last step, and harmless)."""

    keeps_momentum: bool = False
    nesterov: bool = False
    learning_rate_in_momentum: bool = True

    @property
    def slots(self) -> tuple[Slot, ...]:
        unit = "step" if self.learning_rate_in_momentum else "gradient"
        return (Slot("m", unit=unit),) if self.keeps_momentum else ()

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        return {"lr": hyper["learning_rate"], "momentum": hyper["momentum"]}

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        step = -c["lr"] * gradient
        if not self.keeps_momentum:
            return step, {}
        if not self.learning_rate_in_momentum:
            m = c["momentum"] * slots["m"] + gradient
            return -c["lr"] * (c["momentum"] * m + gradient if self.nesterov else m), {"m": m}
        m = c["momentum"] * slots["m"] + step
        return (c["momentum"] * m + step if self.nesterov else m), {"m": m}
