"""ConditionalGradient of TensorFlow Addons, which keeps a slot of zeros that no step reads.

Source: `optimizers/conditional_gradient.py` of TensorFlow Addons 0.6 - 0.23.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms.spec import (
    ALWAYS_COUNTED,
    Algorithm,
    Config,
    SlotSpec,
    always,
    apart,
    each_alone,
    epsilon,
    number,
)
from optim.rule import Slot

UNREAD = "conditional_gradient"


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    return {
        "lambda_": number(config, "lambda_"),
        "epsilon": epsilon(config, generation),
        "ord": str(config["ord"]),
    }


def _defaults(generation: str) -> dict[str, Any]:
    return {"lambda_": 0.01, "epsilon": 1e-7, "ord": "fro"}


ALGORITHM = Algorithm(
    name="ConditionalGradient",
    slots=(SlotSpec(Slot(UNREAD, unit="nothing"), (UNREAD,)),),
    unread=(UNREAD,),
    blocks=each_alone(UNREAD),
    arguments=_arguments,
    defaults=_defaults,
    adjust=always(),
    counts=ALWAYS_COUNTED,
    scalars=("lambda_",),
    time_decay=False,
    lazy=apart,  # Rows without a gradient stay where they are, and the norm is that of the others
)
