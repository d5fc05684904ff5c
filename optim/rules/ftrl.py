"""FTRL-Proximal.

    n' = n + g²        σ = (n'^−π − n^−π) / lr        z' = z + g + 2·s·p − σ·p
    p ← (clip(z', −l₁, l₁) − z') / (n'^−π / lr + 2·l₂ + β / lr)

with n = `accumulator`, z = `linear`, π = `learning_rate_power` (−½ in the paper) and s the L2 shrinkage. McMahan et
al., "Ad Click Prediction: a View from the Trenches" (2013), algorithm 1, where λ₁ = l₁, λ₂ = 2·l₂ and β is the same.
As `tf.train.FtrlOptimizer`, OptimizerV2 (`optimizer_v2/ftrl.py`; β from TF 2.4 on) and Keras 2.11 to 3
(`optimizers/ftrl.py`). The FtrlV2 kernel of TF 2.4 alone keeps lr·z in the slot; then everything is times lr:

    z' = z + lr·(g + 2·s·p) − (n'^−π − n^−π)·p
    p ← (clip(z', −l₁·lr, l₁·lr) − z') / (n'^−π + 2·l₂·lr + β)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

from optim.arguments import Hyperparameter, choice, fixed_number, rate
from optim.errors import HyperparameterError
from optim.rule import Arrays, Rule, Scalars, Slot


@dataclass(frozen=True)
class FtrlRule(Rule):
    learning_rate = rate(meaning="float > 0, scalar tensor, schedule or zero-argument callable")
    learning_rate_power = Hyperparameter(-0.5, "-π; 0 for a fixed learning rate", low=-math.inf, high=0.0, closed=True)
    initial_accumulator_value: float = choice(0.1, "initial value of `accumulator`, >= 0", fixed_number, keyword=False)
    l1_regularization_strength = Hyperparameter(0.0, "l₁")
    l2_regularization_strength = Hyperparameter(0.0, "l₂")
    l2_shrinkage_regularization_strength = Hyperparameter(
        0.0, "an L2 penalty on the size of the variable, added to its gradient"
    )
    beta = Hyperparameter(
        0.0, "the paper's β, or an addition of β / (2 · learning rate) to `l2_regularization_strength`"
    )
    learning_rate_in_linear: bool = choice(
        False,
        "True keeps `linear` multiplied by the learning rate, as the FtrlV2 kernel (the one for shrinkage) did in TF"
        " 2.4",
    )

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (
            Slot("accumulator", unit="gradient^2", initial=self.initial_accumulator_value, nonnegative=True),
            Slot("linear", unit="gradient*lr" if self.learning_rate_in_linear else "gradient"),
        )

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        lr = hyper["learning_rate"]
        if isinstance(lr, float) and lr == 0.0:  # inside a tf.function the value is not known
            raise HyperparameterError("Ftrl divides by the learning rate, which is 0 at this step: use one > 0")
        scale = lr if self.learning_rate_in_linear else 1.0
        return {
            "lr": lr,
            "scale": scale,
            "per_power": scale / lr,
            "power": hyper["learning_rate_power"],
            "l1": hyper["l1_regularization_strength"],
            "l2": hyper["l2_regularization_strength"] + hyper["beta"] / (2.0 * lr),
            "shrinkage": hyper["l2_shrinkage_regularization_strength"],
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        accumulator = slots["accumulator"] + xp.square(gradient)
        new_power = _root(xp, accumulator, c["power"])
        sigma = c["per_power"] * (new_power - _root(xp, slots["accumulator"], c["power"]))
        shrunk = gradient + 2.0 * c["shrinkage"] * variable
        linear = slots["linear"] + c["scale"] * shrunk - sigma * variable
        l1, l2 = c["scale"] * c["l1"], c["scale"] * c["l2"]
        clipped = xp.maximum(xp.minimum(linear, l1), -l1)
        value = (clipped - linear) / (c["per_power"] * new_power + 2.0 * l2)
        return value - variable, {"accumulator": accumulator, "linear": linear}


def _root(xp: Any, accumulator: Any, power: Any) -> Any:
    """Return accumulator to the -power.

    `sigma` is a difference of two of these, which the rounding errors of a power would dominate. So the usual power, if
    its value is known, is computed by a square root, which rounds once.
    """
    if isinstance(power, Real) and power == -0.5:
        return xp.sqrt(accumulator)
    return accumulator**-power
