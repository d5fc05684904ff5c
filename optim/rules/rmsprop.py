"""RMSprop, plain or centered, with or without momentum.

    v ← ρ·v + (1−ρ)·g²        a ← ρ·a + (1−ρ)·g  (centered only)        d = v,  or v − a² (centered)
    u = g / √(d + ε)          or, with ε outside the root, g / (√d + ε)
    p ← p − lr·u              or, with momentum μ,  b ← μ·b + lr·u,  p ← p − b
                              or, with lr outside the slot,  b ← μ·b + u,  p ← p − lr·b

with v = `velocity`, a = `average_gradient`, b = `momentum`. Tieleman & Hinton, "Lecture 6.5 - rmsprop" (2012);
centered: Graves, "Generating Sequences With Recurrent Neural Networks" (2013), eqs. 38-41, which also have this
momentum. Releases differ in the places of ε and lr:

    ε inside, lr inside     Keras 2.11 to 3 (`optimizers/rmsprop.py`), `tf.train.RMSPropOptimizer`, and with momentum
                            OptimizerV2 (`optimizer_v2/rmsprop.py`)
    ε outside               Keras 1.0.3 to 2.3, tf.keras before OptimizerV2, and OptimizerV2 without momentum
    ε outside, lr outside   `optimizers.experimental` of 2.9 and 2.10, and the DTensor class of 2.9
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, choice, fixed_number, optional_flag, rate, used
from optim.errors import HyperparameterError
from optim.rule import Arrays, Rule, Scalars, Slot


@dataclass(frozen=True)
class RMSpropRule(Rule):
    learning_rate = rate()
    rho = Hyperparameter(0.9, "decay rate of the means", high=1.0)
    momentum = Hyperparameter(0.0, "μ", high=1.0, closed=True)
    epsilon = Hyperparameter(1e-07, "keeps the denominator from zero")
    centered: bool = choice(
        False,
        "divide by the standard deviation of the gradients in place of their root mean square",
        keyword=False,
    )
    epsilon_inside: bool = choice(True, "True divides by √(v + ε), False by √v + ε")
    learning_rate_in_momentum: bool = choice(
        True, "whether the slot `momentum` sums steps (True) or steps without the learning rate"
    )
    momentum_slot: bool | None = choice(
        None,
        "True keeps the slot `momentum` although `momentum` is 0, as `tf.train.RMSPropOptimizer` does (it is then the"
        " last step); None keeps it if momentum is used",
        optional_flag,
    )
    initial_velocity: float = choice(
        0.0, "initial value of `velocity`, >= 0; `tf.train.RMSPropOptimizer` starts at 1", fixed_number
    )

    @classmethod
    def from_arguments(cls, choices: Mapping[str, Any], hyper: Mapping[str, Any]) -> RMSpropRule:
        if used(hyper["momentum"]) and choices["momentum_slot"] is False:
            raise HyperparameterError("momentum_slot=False contradicts `momentum`, which needs its slot")
        return cls(**{**choices, "momentum_slot": used(hyper["momentum"]) or bool(choices["momentum_slot"])})

    @property
    def keeps_momentum(self) -> bool:
        """Whether the slot `momentum` exists (with μ = 0 it is the last step, and harmless)."""
        return bool(self.momentum_slot)

    @property
    def slots(self) -> tuple[Slot, ...]:
        start, has_bits = self.initial_velocity, not self.centered  # a difference of two roundings would be no variance
        slots = [Slot("velocity", unit="gradient^2", initial=start, nonnegative=True, few_bits=has_bits)]
        if self.keeps_momentum:
            unit = "-step" if self.learning_rate_in_momentum else "-step/lr"
            slots.append(Slot("momentum", unit=unit, few_bits=True))
        if self.centered:
            slots.append(Slot("average_gradient", unit="gradient"))
        return tuple(slots)

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        rho = hyper["rho"]
        return {
            "lr": hyper["learning_rate"],
            "rho": rho,
            "one_minus_rho": 1.0 - rho,
            "momentum": hyper["momentum"],
            "epsilon": hyper["epsilon"],
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        velocity = c["rho"] * slots["velocity"] + c["one_minus_rho"] * xp.square(gradient)
        new = {"velocity": velocity}
        spread = velocity
        if self.centered:
            average = c["rho"] * slots["average_gradient"] + c["one_minus_rho"] * gradient
            new["average_gradient"] = average
            spread = velocity - xp.square(average)
            # A variance: only rounding makes it negative, and then the root would be NaN. Complex ones have no order.
            if not getattr(spread.dtype, "is_complex", False):
                spread = xp.maximum(spread, 0.0)
        root = xp.sqrt(spread + c["epsilon"]) if self.epsilon_inside else xp.sqrt(spread) + c["epsilon"]
        if not self.keeps_momentum:
            return -c["lr"] * gradient / root, new
        inside, outside = (c["lr"], 1.0) if self.learning_rate_in_momentum else (1.0, c["lr"])
        new["momentum"] = c["momentum"] * slots["momentum"] + inside * gradient / root
        return -outside * new["momentum"], new
