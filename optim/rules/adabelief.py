"""AdaBelief: Adam that divides by how far gradients are from their mean.

    m ← β₁·m + (1−β₁)·g        v ← β₂·v + (1−β₂)·(g−m)² + ε        v̂ ← max(v̂, v)  (AMSGrad only)
    p ← p − lr · m/(1−β₁ᵗ) / (√(v/(1−β₂ᵗ)) + ε)        and, with `rectify`, as in Rectified Adam

Zhuang et al., "AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed Gradients" (2020), algorithm 2. ε in
both places, and rectification (see `optim/rules/rectification.py`), as `AdaBelief` of TensorFlow Addons 0.20
(`optimizers/adabelief.py`) and the authors' `adabelief_pytorch` 0.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, choice, rate
from optim.rule import Arrays, Rule, Scalars, Slot
from optim.rules import rectification
from optim.rules.moments import moments
from optim.rules.powers import float32_powers, power


@dataclass(frozen=True)
class AdaBeliefRule(Rule):
    learning_rate = rate()
    beta_1 = Hyperparameter(0.9, "decay rate of the mean of gradients", high=1.0)
    beta_2 = Hyperparameter(0.999, "decay rate of the mean of squared distances from it", high=1.0)
    epsilon = Hyperparameter(1e-14, "added to `v` at each step, and to its root")
    rectify: bool = choice(True, "whether first steps do not use `v`, as in `RectifiedAdam`", keyword=False)
    amsgrad: bool = choice(False, "use the largest `v` so far", keyword=False)
    sma_threshold = rectification.SMA_THRESHOLD
    total_steps = rectification.TOTAL_STEPS
    warmup_proportion = rectification.WARMUP_PROPORTION
    min_lr = rectification.MIN_LR
    float32_powers: bool | str = float32_powers()
    lazy_rows_keep_slots: bool = rectification.lazy_rows_keep_slots()

    @property
    def keeps_lazy_slots(self) -> bool:
        return self.lazy_rows_keep_slots

    @property
    def slots(self) -> tuple[Slot, ...]:
        return moments(self.amsgrad)

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        beta_1, beta_2, epsilon = hyper["beta_1"], hyper["beta_2"], hyper["epsilon"]
        lr = rectification.warmed(xp, hyper, step)
        rooted, factor = 1.0, 1.0
        if self.rectify:
            rooted, factor = rectification.rectification(xp, beta_2, step, hyper["sma_threshold"], self.float32_powers)
        return {
            "decay_rate": lr,
            "alpha": lr * factor / (1.0 - power(xp, beta_1, step, self.float32_powers)),
            "one_minus_beta_1": 1.0 - beta_1,
            "one_minus_beta_2": 1.0 - beta_2,
            "epsilon": epsilon,
            "root": rooted / xp.sqrt(1.0 - power(xp, beta_2, step, self.float32_powers)),
            "constant": rooted * epsilon + 1.0 - rooted,
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        m = slots["m"] + c["one_minus_beta_1"] * (gradient - slots["m"])
        v = slots["v"] + c["one_minus_beta_2"] * (xp.square(gradient - m) - slots["v"]) + c["epsilon"]
        new = {"m": m, "v": v}
        if self.amsgrad:
            v = new["vhat"] = xp.maximum(slots["vhat"], v)
        return -c["alpha"] * m / (c["root"] * xp.sqrt(v) + c["constant"]), new
