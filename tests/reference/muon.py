"""Muon, in float64 NumPy.

Jordan et al. (2024), `newtonschulz5` of the post: X = G/(‖G‖ + 1e-7); five times A = X·Xᵀ, B = b·A + c·A²,
X = a·X + B·X; on the transpose where there are more rows than columns. Here by the singular values instead: with
X = U·S·Vᵀ one iteration is U·(a·S + b·S³ + c·S⁵)·Vᵀ. Scaled by 0.2·√max(rows, columns): Liu et al. (2025), eq. 4.
Jordan's own code scales by √max(1, rows/columns) instead: `aspect_scale`. Variables of another rank than 2, or with
`stacks` than 2 and 3, and of the shapes `excluded`, are updated by Adam.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.adam import Adam
from tests.reference.common import Array


@dataclass(frozen=True)
class Muon:
    adam_beta_1: float = 0.9
    adam_beta_2: float = 0.999
    epsilon: float = 1e-7
    muon_a: float = 3.4445
    muon_b: float = -4.7750
    muon_c: float = 2.0315
    adam_lr_ratio: float = 1.0
    momentum: float = 0.95
    ns_steps: int = 5
    nesterov: bool = True
    rms_rate: float | None = 0.2
    aspect_scale: bool = False
    stacks: bool = False
    excluded: tuple[tuple[int, ...], ...] = ()

    def _uses_adam(self, shape: tuple[int, ...]) -> bool:
        return len(shape) not in ((2, 3) if self.stacks else (2,)) or shape in self.excluded

    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        return {name: np.zeros(shape) for name in (("m", "v") if self._uses_adam(shape) else ("m",))}

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        if self._uses_adam(value.shape):
            adam = Adam(self.adam_beta_1, self.adam_beta_2, self.epsilon)
            return adam.step(value, gradient, slots, self.adam_lr_ratio * rate, number)
        slots["m"] = self.momentum * slots["m"] + gradient
        direction = gradient + self.momentum * slots["m"] if self.nesterov else slots["m"]
        size = np.linalg.norm(direction, axis=(-2, -1), keepdims=True)
        left, s, right = np.linalg.svd(direction / (size + 1e-7), full_matrices=False)
        for _ in range(self.ns_steps):
            s = self.muon_a * s + self.muon_b * s**3 + self.muon_c * s**5
        rows, columns = value.shape[:2]
        scale = 1.0 if self.rms_rate is None else self.rms_rate * np.sqrt(max(rows, columns))
        scale *= np.sqrt(max(1.0, rows / columns)) if self.aspect_scale else 1.0
        return value - rate * scale * (left * s[..., None, :]) @ right
