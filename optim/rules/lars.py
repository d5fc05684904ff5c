"""LARS: momentum whose steps are scaled, variable by variable, to the variable's own norm.

    λ = η·‖p‖ / (‖g‖ + w·‖p‖ + ε),  or 1 if ‖p‖ or ‖g‖ is 0        u = g + w·p
    λ = η·‖p‖ / (‖u‖ + ε),  or 1 if ‖p‖ or ‖u‖ is 0, with `norm_of_sum`
    m ← μ·m − lr·λ·u        p ← p + m,  or with Nesterov  p ← p + μ·m − lr·λ·u

with w = `weight_decay` and η = `trust_coefficient`. You, Gitman & Ginsburg, "Large Batch Training of Convolutional
Networks" (2017), algorithm 1; `tf.contrib.opt.LARSOptimizer` of TF 1.15
(`contrib/opt/python/training/lars_optimizer.py`), and without weight decay `optax.lars` 0.2; with `norm_of_sum` LARS of
tf-models-official 2.9 (`official/modeling/optimization/lars_optimizer.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, choice, patterns, rate
from optim.rule import Arrays, Scalars, Slot, Whole


@dataclass(frozen=True)
class LARSRule(Whole):
    learning_rate = rate(0.01)
    momentum = Hyperparameter(0.9, "μ", high=1.0)
    trust_coefficient = Hyperparameter(0.001, "η")
    epsilon = Hyperparameter(0.0, "added to the divisor of λ")
    nesterov: bool = choice(False, "Nesterov's momentum", keyword=False)
    norm_of_sum: bool = choice(
        False, "use the norm of the gradient after weight decay is added, as LARS of tf-models-official does"
    )
    exclude_from_layer_adaptation: tuple[str, ...] = choice(
        (),
        "regular expressions; a variable whose name one of them matches (`re.search`) has λ = 1",
        lambda name, value: patterns(name, value or ()),
    )

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot("m", unit="step", few_bits=True),)

    @property
    def places_weight_decay(self) -> bool:
        return True

    def constants(self, shape: Sequence[int], names: Sequence[str]) -> Mapping[str, float]:
        excluded = any(re.search(p, name) for p in self.exclude_from_layer_adaptation for name in names)
        return {"adapted": 0.0 if excluded else 1.0}

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        return {
            "lr": hyper["learning_rate"],
            "momentum": hyper["momentum"],
            "trust_coefficient": hyper["trust_coefficient"],
            "epsilon": hyper["epsilon"],
            "weight_decay": hyper.get("weight_decay", 0.0),
            "adapted": hyper.get("adapted", 1.0),
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        direction = gradient + c["weight_decay"] * variable
        size, length = _norm(xp, variable), _norm(xp, direction if self.norm_of_sum else gradient)
        one = xp.ones_like(size)
        decayed = 0.0 if self.norm_of_sum else c["weight_decay"] * size
        divisor = length + decayed + c["epsilon"]
        is_known = xp.minimum(size, length) * c["adapted"] > 0
        trust = xp.where(is_known, c["trust_coefficient"] * size / xp.where(is_known, divisor, one), one)
        step = -(c["lr"] * trust) * direction
        m = c["momentum"] * slots["m"] + step
        return (c["momentum"] * m + step if self.nesterov else m), {"m": m}


def _norm(xp: Any, x: Any) -> Any:
    return xp.sqrt(xp.reduce_sum(xp.square(x)))
