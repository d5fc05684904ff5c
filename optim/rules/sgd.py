"""Gradient descent, with classical or Nesterov momentum.

Without momentum:  p ← p − lr·g.
With momentum μ:   m ← μ·m − lr·g;  p ← p + m,  or with Nesterov  p ← p + μ·m − lr·g.
With lr outside:   m ← μ·m + g;  p ← p − lr·m,  or with Nesterov  p ← p − lr·(μ·m + g).

The learning rate is inside the slot in every Keras (Keras 1.0 `optimizers.py` to Keras 3 `sgd.py`), outside in
`tf.train.MomentumOptimizer`. Momentum: Sutskever et al., "On the importance of initialization and momentum in
deep learning" (2013), eqs. 1-2 and 3-4, the latter in the form that keeps p at the look-ahead point.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, choice, optional_flag, rate, used
from optim.errors import HyperparameterError
from optim.rule import Arrays, Rule, Scalars, Slot


@dataclass(frozen=True)
class SGDRule(Rule):
    learning_rate = rate(0.01)
    momentum = Hyperparameter(0.0, "μ", high=1.0, closed=True)
    nesterov: bool = choice(
        False, "Nesterov's momentum; without `momentum` it changes nothing, and warns", keyword=False
    )
    momentum_slot: bool | None = choice(
        None,
        "True keeps the slot `m` although `momentum` is 0, as Keras up to 2.3 and from 2.11 on do (it is then the last"
        " step); None keeps it if momentum is used",
        optional_flag,
    )
    learning_rate_in_momentum: bool = choice(
        True,
        "False keeps the learning rate out of the slot, m ← μ·m + g and p ← p − lr·m, as `tf.train.MomentumOptimizer`"
        " does: a change of rate then applies to earlier gradients, too",
    )

    @classmethod
    def from_arguments(cls, choices: Mapping[str, Any], hyper: Mapping[str, Any]) -> SGDRule:
        is_used = used(hyper["momentum"])
        if choices["nesterov"] and not is_used:
            warnings.warn("nesterov=True changes nothing while momentum is 0", UserWarning, 3)
        if is_used and choices["momentum_slot"] is False:
            raise HyperparameterError("momentum_slot=False contradicts `momentum`, which needs its slot")
        return cls(**{**choices, "momentum_slot": is_used or bool(choices["momentum_slot"])})

    @property
    def keeps_momentum(self) -> bool:
        """Whether the slot m exists (with μ = 0 it is the last step, and harmless)."""
        return bool(self.momentum_slot)

    @property
    def slots(self) -> tuple[Slot, ...]:
        unit = "step" if self.learning_rate_in_momentum else "gradient"
        return (Slot("m", unit=unit, few_bits=True),) if self.keeps_momentum else ()

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
