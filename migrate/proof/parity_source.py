"""What a step by the formulas of a release needs of a checkpoint, with its numbers rounded as that release had them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.generations import EXPERIMENTAL, KERAS3, OPTIMIZER, TF1

Slots = Mapping[str, np.ndarray]
"""Of one variable, by `optim`'s names, float64."""


@dataclass(frozen=True)
class Source:
    """What a step needs of a checkpoint besides arrays: the config as stored, who wrote it, and the step
    count."""

    algorithm: str
    config: Mapping[str, Any]
    generation: str
    version: tuple[int, ...] | None
    iterations: int
    dtype: str = "float32"
    product: float | None = None
    """Nadam's product of momenta where the source has a usable one."""
    scaled_linear: bool = False
    """Whether Ftrl's `linear` is multiplied by the learning rate, as in the FtrlV2 kernel of TF 2.3 to 2.5."""
    late_z: bool = False
    """Whether Schedule-Free AdamW takes the new z for the old, which its backend decides."""
    called: str = ""
    """The class as the source calls it, without its package."""
    variable: str = ""
    """The name of the variable that is stepped."""

    def cast(self, key: str, default: float) -> float:
        """A hyperparameter as the step has it: in the dtype of the variable."""
        value = self.get(key, default)
        return float(np.float32(value)) if self.dtype == "float32" else value

    def power(self, beta: float, steps: int) -> float:
        """β to the power of the steps: of a float32 β a float32, and tf.train multiplies it at each step."""
        if self.generation == TF1:
            return float(np.cumprod(np.full(steps, beta, np.float32))[-1])
        return float(np.float32(beta**steps)) if self.dtype == "float32" else beta**steps

    def in_means(self, key: str, default: float) -> float:
        """β or ρ as the means have it: a Python number from 2.9's experimental classes on, before that a float32."""
        newer = self.generation in (EXPERIMENTAL, OPTIMIZER, KERAS3) or not self.corrected
        return self.get(key, default) if newer else self.cast(key, default)

    @property
    def corrected(self) -> bool:
        """Whether Adam corrects its bias; BERT's does not, and forms 1 − β of Python numbers."""
        return bool(self.config.get("bias_correction", self.called != "AdamWeightDecayOptimizer"))

    def get(self, key: str, default: float = 0.0) -> float:
        value = self.config.get(key)
        return default if value is None else float(value)
