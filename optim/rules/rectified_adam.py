"""Rectified Adam (RAdam): Adam whose first steps do not use the second moment, while its estimate is poor.

    m ← β₁·m + (1−β₁)·g        v ← β₂·v + (1−β₂)·g²        v̂ ← max(v̂, v)  (AMSGrad only)
    p ← p − lr · r · m/(1−β₁ᵗ) / (√(v/(1−β₂ᵗ)) + ε)        if ρ_t reaches the threshold, else  p ← p − lr · m/(1−β₁ᵗ)

Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond" (2020), algorithm 2; ρ_t and r: see
`optim/rules/rectification.py`. As `RectifiedAdam` of TensorFlow Addons 0.20 (`optimizers/rectified_adam.py`). With
`epsilon_hat`, ε is added as in `torch.optim.RAdam` 2.x, to the uncorrected root: √(1−β₂ᵗ) / (√v + ε). torch requires
ρ_t > 5, and Addons ρ_t >= 5.
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
class RectifiedAdamRule(Rule):
    learning_rate = rate()
    beta_1 = Hyperparameter(0.9, "decay rate of the mean of gradients", high=1.0)
    beta_2 = Hyperparameter(0.999, "decay rate of the mean of squared gradients", high=1.0)
    epsilon = Hyperparameter(1e-07, "added to the root")
    amsgrad: bool = choice(False, "use the largest `v` so far", keyword=False)
    sma_threshold = rectification.SMA_THRESHOLD
    total_steps = rectification.TOTAL_STEPS
    warmup_proportion = rectification.WARMUP_PROPORTION
    min_lr = rectification.MIN_LR
    epsilon_hat: bool = choice(False, "add ε to √v, and not to √(v/(1−β₂ᵗ)), as torch does")
    float32_powers: bool | str = float32_powers()
    lazy_rows_keep_slots: bool = rectification.lazy_rows_keep_slots()

    @property
    def keeps_lazy_slots(self) -> bool:
        return self.lazy_rows_keep_slots

    @property
    def slots(self) -> tuple[Slot, ...]:
        return moments(self.amsgrad)

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        beta_1, beta_2 = hyper["beta_1"], hyper["beta_2"]
        rooted, factor = rectification.rectification(
            xp, beta_2, step, hyper["sma_threshold"], self.float32_powers, inverted=True
        )
        lr = rectification.warmed(xp, hyper, step)
        correction = 1.0 / xp.sqrt(1.0 - power(xp, beta_2, step, self.float32_powers))
        return {
            "decay_rate": lr,
            "alpha": lr * factor / (1.0 - power(xp, beta_1, step, self.float32_powers)),
            "one_minus_beta_1": 1.0 - beta_1,
            "one_minus_beta_2": 1.0 - beta_2,
            # The divisor is rooted·(correction·√v + ε) + plain, where one of rooted and plain is 1 and the other 0.
            "root": rooted * correction,
            "constant": rooted * hyper["epsilon"] * (correction if self.epsilon_hat else 1.0) + 1.0 - rooted,
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        m = slots["m"] + c["one_minus_beta_1"] * (gradient - slots["m"])
        v = slots["v"] + c["one_minus_beta_2"] * (xp.square(gradient) - slots["v"])
        new = {"m": m, "v": v}
        if self.amsgrad:
            v = new["vhat"] = xp.maximum(slots["vhat"], v)
        return -c["alpha"] * m / (c["root"] * xp.sqrt(v) + c["constant"]), new
