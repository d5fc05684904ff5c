"""ConditionalGradient of TensorFlow Addons, which keeps a slot of zeros that no step reads.

Source: `optimizers/conditional_gradient.py` of TensorFlow Addons 0.6 - 0.23.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms import spec
from optim.rule import Slot

UNREAD = "conditional_gradient"


def _arguments(config: spec.Config, generation: str) -> dict[str, Any]:
    return {
        "lambda_": spec.number(config, "lambda_"),
        "epsilon": spec.epsilon(config, generation),
        "ord": str(config["ord"]),
    }


ALGORITHM = spec.Algorithm(
    name="ConditionalGradient",
    slots=(spec.SlotSpec(Slot(UNREAD, unit="nothing"), (UNREAD,)),),
    unread=(UNREAD,),
    arguments=_arguments,
    defaults=spec.constants(lambda_=0.01, epsilon=1e-7, ord="fro"),
    scalars=("lambda_",),
    time_decay=False,
    lazy=spec.custom_rows,  # Rows without a gradient keep their values, and the norm is that of the other rows
)
