"""The inputs of a step by a release's formulas from a checkpoint, rounded as in that release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.generations import EXPERIMENTAL, KERAS1, KERAS2, KERAS2_3, OPTIMIZER_V1, OPTIMIZER_V2, TF1

NATIVE = (KERAS1, KERAS2, KERAS2_3, OPTIMIZER_V1)
Slots = Mapping[str, np.ndarray]
"""Slots of one variable, by `optim`'s names, float64."""


@dataclass(frozen=True)
class Source:
    """The inputs of a step other than arrays: the stored config, who wrote it, and the step count."""

    algorithm: str
    config: Mapping[str, Any]
    generation: str
    version: tuple[int, ...] | None
    iterations: int
    dtype: str = "float32"
    product: float | None = None
    """Nadam's product of momenta, if the source has a usable one."""
    scaled_linear: bool = False
    """Whether Ftrl's `linear` is multiplied by the learning rate, as in the FtrlV2 kernel of TF 2.3 to 2.5."""
    late_z: bool = False
    """Whether Schedule-Free AdamW uses the new z for the old, which depends on its backend."""
    called: str = ""
    """The class's name in the source, without its package."""
    variable: str = ""
    """The name of the variable that is stepped."""

    def cast(self, key: str, default: float) -> float:
        """A hyperparameter in the dtype of the variable, as the step uses it."""
        value = self.get(key, default)
        return float(np.float32(value)) if self.dtype == "float32" else value

    def power(self, beta: float, steps: int) -> float:
        """β to the power of the steps: float32 for a float32 β; tf.train multiplies it in each step."""
        if self.is_tf_train:
            return float(np.cumprod(np.full(steps, beta, np.float32))[-1])
        return float(np.float32(beta**steps)) if self.dtype == "float32" else beta**steps

    def in_means(self, key: str, default: float) -> float:
        """β or ρ as used in the means: a Python number from 2.9's experimental classes on, before that a float32."""
        newer = self.is_new or not self.corrected
        return self.get(key, default) if newer else self.cast(key, default)

    @property
    def is_native(self) -> bool:
        """Whether it is of Keras's own update code, before OptimizerV2."""
        return self.generation in NATIVE

    @property
    def is_tf_train(self) -> bool:
        """Whether it is of tf.train or tf.contrib."""
        return self.generation == TF1

    @property
    def is_new(self) -> bool:
        """Whether it is of TF 2.9's experimental classes or later ones, which decay weights and clip once."""
        return not (self.is_native or self.is_tf_train or self.generation == OPTIMIZER_V2)

    @property
    def has_addons(self) -> bool:
        """Whether Lamb is that of TensorFlow Addons."""
        return self.generation == OPTIMIZER_V2

    @property
    def has_time_decay(self) -> bool:
        """Whether `decay` lowers the rate."""
        return self.is_native or self.generation == OPTIMIZER_V2

    @property
    def limits_one_norm(self) -> bool:
        """`get_gradients` of TF 1.4 to 1.9, whose Keras has versions 2.0.8-tf to 2.1.6-tf, and of Keras 1 and 2."""
        return self.generation != OPTIMIZER_V1 or (self.version is not None and self.version < (2, 1, 6))

    @property
    def has_old_adadelta(self) -> bool:
        """Whether the kernel of Adadelta is that of TF 1.4 and before."""
        return self.is_tf_train and self.version is not None and self.version < (1, 5)

    @property
    def is_momentum_without_rate(self) -> bool:
        """Whether RMSprop's momentum gathers gradients without the rate."""
        return self.generation == EXPERIMENTAL

    def rmsprop_adds_inside(self, momentum: float) -> bool:
        """Whether RMSprop adds epsilon inside the root."""
        is_fused = self.is_tf_train or (self.generation == OPTIMIZER_V2 and momentum > 0)
        return is_fused or (self.is_new and not self.is_momentum_without_rate)

    @property
    def schedule_decay(self) -> float:
        """How Nadam's momentum changes."""
        if self.generation == OPTIMIZER_V2:
            return self.get("decay", self.get("schedule_decay", 0.004))
        return self.get("schedule_decay", 0.004) if self.is_native else 1.0

    @property
    def epsilon(self) -> float:
        """Epsilon with the backend's default put in."""
        stored = self.config.get("epsilon")
        if stored is None:
            return 1e-8 if self.generation == KERAS1 else 1e-7
        return 1e-7 if self.generation == OPTIMIZER_V2 and stored == 0 else float(stored)

    @property
    def corrected(self) -> bool:
        """Whether Adam corrects its bias; BERT's does not, and computes 1 − β with Python numbers."""
        return bool(self.config.get("bias_correction", self.called != "AdamWeightDecayOptimizer"))

    def get(self, key: str, default: float = 0.0) -> float:
        value = self.config.get(key)
        return default if value is None else float(value)
