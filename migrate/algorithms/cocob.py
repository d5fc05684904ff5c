"""COCOB of TensorFlow Addons, which has no learning rate.

Source: `optimizers/cocob.py` of TensorFlow Addons 0.14 - 0.23.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms.spec import (
    ALWAYS_COUNTED,
    Algorithm,
    Config,
    always,
    each_alone,
    number,
    slots_of,
)
from optim.rules.cocob import COCOBRule

SLOTS = slots_of(
    COCOBRule(),
    largest_gradient=("lr",),
    gradient_norm_sum=("grad_norm_sum",),
    gradient_sum=("gradients_sum",),
    bet=("tilde_w",),
    reward=("reward",),
)


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    return {"alpha": number(config, "alpha")}


def _defaults(generation: str) -> dict[str, Any]:
    return {"learning_rate": 1.0, "alpha": 100.0}


ALGORITHM = Algorithm(
    name="COCOB",
    slots=SLOTS,
    blocks=each_alone(*(slot.name for slot in SLOTS)),
    arguments=_arguments,
    defaults=_defaults,
    adjust=always(*(slot.name for slot in SLOTS)),
    counts=ALWAYS_COUNTED,
    scalars=("alpha",),
    time_decay=False,
)
