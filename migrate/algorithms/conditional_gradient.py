"""ConditionalGradient of TensorFlow Addons, which keeps a slot of zeros that no step reads.

Source: `optimizers/conditional_gradient.py` of TensorFlow Addons 0.6 - 0.23.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms.spec import (
    ALWAYS_COUNTED,
    APART,
    Algorithm,
    Block,
    Blocks,
    Config,
    SlotSpec,
    epsilon,
    number,
)
from optim.rule import Slot

UNREAD = "conditional_gradient"


def _blocks(generation: str, config: Config) -> tuple[Blocks, ...]:
    return ((Block((UNREAD,)),),)


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    return {
        "lambda_": number(config, "lambda_"),
        "epsilon": epsilon(config, generation),
        "ord": str(config["ord"]),
    }


def _defaults(generation: str) -> dict[str, Any]:
    return {"lambda_": 0.01, "epsilon": 1e-7, "ord": "fro"}


def _adjust(arguments: Config, present: frozenset[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    return {}, ()


def _lazy(config: Config, generation: str) -> str | None:
    """Rows without a gradient stay where they are, and the norm is that of the others."""
    return APART


ALGORITHM = Algorithm(
    name="ConditionalGradient",
    slots=(SlotSpec(Slot(UNREAD, unit="nothing"), (UNREAD,)),),
    unread=(UNREAD,),
    blocks=_blocks,
    arguments=_arguments,
    defaults=_defaults,
    adjust=_adjust,
    counts=ALWAYS_COUNTED,
    scalars=("lambda_",),
    generations=frozenset({"optimizer_v2"}),
    elsewhere=frozenset({"optimizer_v2"}),
    time_decay=False,
    lazy=_lazy,
)
