"""LAMB: Adam's step of each variable, scaled to the variable's own norm.

    m ← β₁·m + (1−β₁)·g        v ← β₂·v + (1−β₂)·g²
    u = m/(1−β₁ᵗ) / (√(v/(1−β₂ᵗ)) + ε)        p ← p − lr · ‖p‖/‖u‖ · u,  and p ← p − lr·u if a norm is 0

You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (2020), algorithm 2 with φ the
identity and without its λ·p inside u: as in Keras 3 (`optimizers/lamb.py`) weights decay before the step, by
the option `weight_decay` of every optimizer. With `decay_in_step` it is inside, as in `LAMB` of TensorFlow Addons 0.19
(`optimizers/lamb.py`) and of tf-models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, choice, patterns, rate
from optim.rule import Arrays, Scalars, Slot, Whole
from optim.rules.powers import float32_powers, power


@dataclass(frozen=True)
class LambRule(Whole):
    learning_rate = rate()
    beta_1 = Hyperparameter(0.9, "decay rate of the mean of gradients", high=1.0)
    beta_2 = Hyperparameter(0.999, "decay rate of the mean of squared gradients", high=1.0)
    epsilon = Hyperparameter(1e-07, "added to the root")
    float32_powers: bool | str = float32_powers()
    decay_in_step: bool = choice(
        False, "add λ·p, λ being `weight_decay`, to u, so that it is scaled like u, as in the paper and Addons"
    )
    exclude_from_layer_adaptation: tuple[str, ...] = choice(
        (),
        "regular expressions; a variable whose name one of them matches (`re.search`) steps by −lr·u",
        lambda name, value: patterns(name, value or ()),
    )

    @property
    def places_weight_decay(self) -> bool:
        return self.decay_in_step

    def constants(self, shape: Sequence[int], names: Sequence[str]) -> Mapping[str, float]:
        excluded = any(re.search(p, name) for p in self.exclude_from_layer_adaptation for name in names)
        return {"adapted": 0.0 if excluded else 1.0}

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (
            Slot("m", unit="gradient", few_bits=True),
            Slot("v", unit="gradient^2", nonnegative=True, few_bits=True),
        )

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        beta_1, beta_2 = hyper["beta_1"], hyper["beta_2"]
        return {
            "lr": hyper["learning_rate"],
            "m_correction": 1.0 / (1.0 - power(xp, beta_1, step, self.float32_powers)),
            "v_correction": 1.0 / (1.0 - power(xp, beta_2, step, self.float32_powers)),
            "one_minus_beta_1": 1.0 - beta_1,
            "one_minus_beta_2": 1.0 - beta_2,
            "epsilon": hyper["epsilon"],
            "weight_decay": hyper.get("weight_decay", 0.0) if self.decay_in_step else 0.0,
            "adapted": hyper.get("adapted", 1.0),
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        m = slots["m"] + c["one_minus_beta_1"] * (gradient - slots["m"])
        v = slots["v"] + c["one_minus_beta_2"] * (xp.square(gradient) - slots["v"])
        direction = c["m_correction"] * m / (xp.sqrt(c["v_correction"] * v) + c["epsilon"])
        if self.decay_in_step:
            direction = direction + c["weight_decay"] * variable
        size, length = _norm(xp, variable), _norm(xp, direction)
        one = xp.ones_like(length)
        # If u is 0, so is the step, whatever the ratio.
        trust = xp.where(size * c["adapted"] > 0, size / xp.where(length > 0, length, one), one)
        return -(c["lr"] * trust) * direction, {"m": m, "v": v}


def _norm(xp: Any, x: Any) -> Any:
    return xp.sqrt(xp.reduce_sum(xp.square(x)))
