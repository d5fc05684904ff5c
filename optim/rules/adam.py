"""Adam, and its AMSGrad variant.

    m ← β₁·m + (1−β₁)·g        v ← β₂·v + (1−β₂)·g²        v̂ ← max(v̂, v)  (AMSGrad only)
    p ← p − α_t · m / (√v + ε)    with  α_t = lr · √(1−β₂ᵗ) / (1−β₁ᵗ),  and v̂ in place of v for AMSGrad

Kingma & Ba, "Adam" (2015), in the order of computation at the end of section 2 ("epsilon hat": ε is not scaled
by √(1−β₂ᵗ)), as every Keras and TensorFlow release has it. Without the corrections α_t = lr, as in BERT's
`AdamWeightDecayOptimizer` (google-research/bert, `optimization.py`). AMSGrad: Reddi et al., "On the Convergence of
Adam and Beyond" (2018), with the maximum over the uncorrected v, again as in every release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optim.arguments import Hyperparameter, choice, rate
from optim.rule import Arrays, Rule, Scalars, Slot
from optim.rules.moments import moments
from optim.rules.powers import float32_powers, power


@dataclass(frozen=True)
class AdamRule(Rule):
    learning_rate = rate()
    beta_1 = Hyperparameter(0.9, "decay rate of the mean of gradients", high=1.0)
    beta_2 = Hyperparameter(0.999, "decay rate of the mean of squared gradients", high=1.0)
    epsilon = Hyperparameter(1e-07, 'added to the root; "epsilon hat" of the paper\'s section 2')
    amsgrad: bool = choice(False, "use the largest `v` so far", keyword=False)
    float32_powers: bool | str = float32_powers()
    nesterov: bool = choice(
        False,
        "step by β₁·m + (1−β₁)·g, as `tf.contrib.opt.NadamOptimizer` and TensorFlow's kernel `ApplyAdam` with"
        " `use_nesterov` do",
    )
    bias_correction: bool = choice(True, "False leaves out √(1−β₂ᵗ)/(1−β₁ᵗ), as BERT's `AdamWeightDecayOptimizer` does")

    @property
    def slots(self) -> tuple[Slot, ...]:
        return moments(self.amsgrad)

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        beta_1, beta_2 = hyper["beta_1"], hyper["beta_2"]
        alpha = hyper["learning_rate"]
        if self.bias_correction:
            power_1, power_2 = (power(xp, beta, step, self.float32_powers) for beta in (beta_1, beta_2))
            alpha = alpha * xp.sqrt(1.0 - power_2) / (1.0 - power_1)
        return {
            "alpha": alpha,
            "beta_1": beta_1,
            "beta_2": beta_2,
            # Formed in float64: 1 − 0.999 in float32 is off by one part in 10⁵.
            "one_minus_beta_1": 1.0 - beta_1,
            "one_minus_beta_2": 1.0 - beta_2,
            "epsilon": hyper["epsilon"],
        }

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        m = slots["m"] + c["one_minus_beta_1"] * (gradient - slots["m"])
        v = slots["v"] + c["one_minus_beta_2"] * (xp.square(gradient) - slots["v"])
        new = {"m": m, "v": v}
        if self.amsgrad:
            v = new["vhat"] = xp.maximum(slots["vhat"], v)
        ahead = c["beta_1"] * m + c["one_minus_beta_1"] * gradient if self.nesterov else m
        return -c["alpha"] * ahead / (xp.sqrt(v) + c["epsilon"]), new
