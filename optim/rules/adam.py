"""Adam, and its AMSGrad variant.

    m ← β₁·m + (1−β₁)·g        v ← β₂·v + (1−β₂)·g²        v̂ ← max(v̂, v)  (AMSGrad only)
    p ← p − α_t · m / (√v + ε)    with  α_t = lr · √(1−β₂ᵗ) / (1−β₁ᵗ),  and v̂ in place of v for AMSGrad

Kingma & Ba, "Adam" (2015), in the order of computation at the end of section 2 ("epsilon hat": ε is not scaled
by √(1−β₂ᵗ)), as every Keras and TensorFlow release has it. AMSGrad: Reddi et al., "On the Convergence of Adam and
Beyond" (2018), with the maximum over the uncorrected v, again as in every release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optim.rule import Arrays, Elementwise, Scalars, Slot


@dataclass(frozen=True)
class AdamRule(Elementwise):
    amsgrad: bool = False

    @property
    def slots(self) -> tuple[Slot, ...]:
        moments = (Slot("m", unit="gradient"), Slot("v", unit="gradient^2"))
        return (*moments, Slot("vhat", unit="gradient^2")) if self.amsgrad else moments

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        beta_1, beta_2 = hyper["beta_1"], hyper["beta_2"]
        return {
            "alpha": hyper["learning_rate"] * xp.sqrt(1.0 - beta_2**step) / (1.0 - beta_1**step),
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
        return -c["alpha"] * m / (xp.sqrt(v) + c["epsilon"]), new
