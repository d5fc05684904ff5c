"""Learning-rate schedules, computed in float64: by TensorFlow or JAX in a step, by NumPy alone in `at`.

Keras's schedules are here so that an optimizer's config can be read without Keras. `{"class_name", "config"}` describes
any stock schedule of Keras 3, tf_keras or tf.keras, and `from_config` returns the class of that name from here. The
others are `optim`'s: `LinearWarmup` around any schedule, `OneCycle`, `WarmupStableDecay`, and `Formula`.
"""

from __future__ import annotations

from optim.schedules.base import KNOWN, Computed, LearningRateSchedule
from optim.schedules.documents import from_config, is_known, is_schedule, to_config
from optim.schedules.formula import Formula
from optim.schedules.phases import LinearWarmup, OneCycle, WarmupStableDecay
from optim.schedules.stock import (
    STOCK,
    CosineDecay,
    CosineDecayRestarts,
    ExponentialDecay,
    InverseTimeDecay,
    PiecewiseConstantDecay,
    PolynomialDecay,
)

__all__ = [
    "KNOWN",
    "OWN",
    "STOCK",
    "Computed",
    "CosineDecay",
    "CosineDecayRestarts",
    "ExponentialDecay",
    "Formula",
    "InverseTimeDecay",
    "LearningRateSchedule",
    "LinearWarmup",
    "OneCycle",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
    "WarmupStableDecay",
    "from_config",
    "is_known",
    "is_schedule",
    "to_config",
]

OWN = {name: cls for name, cls in KNOWN.items() if name not in STOCK}
"""Schedules that Keras does not have."""
