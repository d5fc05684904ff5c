"""SGD. Standalone Keras and 2.11+ keep the slot even with momentum 0; OptimizerV2 and Keras 3 only with
momentum.

Sources: `keras/optimizers.py` 1.2.2 - 2.3.1, `optimizer_v2/gradient_descent.py` 2.9, `optimizers/sgd.py`
  2.15 and 3.15, `tensorflow/python/training/momentum.py` 1.15 (the learning rate outside the slot).
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms.spec import (
    COUNTED,
    Algorithm,
    Block,
    Blocks,
    Config,
    kept_with_momentum,
    number,
    slots_of,
)
from migrate.generations import NEVER, traits
from optim.rules.sgd import SGDRule


def _blocks(generation: str, config: Config) -> tuple[Blocks, ...]:
    momentum: Blocks = (Block(("m",)),)
    of = traits(generation)
    if number(config, "momentum") or of.keeps_idle_momentum:
        return (momentum,)
    return ((),) if of.sgd_momentum == NEVER else ((), momentum)


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    arguments = {"momentum": number(config, "momentum"), "nesterov": bool(config["nesterov"])}
    return {**arguments, "learning_rate_in_momentum": False} if traits(generation).sgd_rate_outside else arguments


def _defaults(generation: str) -> dict[str, Any]:
    return {"learning_rate": 0.01, "momentum": 0.0, "nesterov": False}


def _adjust(arguments: Config, present: frozenset[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    if arguments["momentum"]:
        return {}, ("m",)
    return ({"momentum_slot": True}, ("m",)) if "m" in present else ({}, ())


ALGORITHM = Algorithm(
    name="SGD",
    slots=slots_of(SGDRule(momentum_slot=True), m=("momentums", "momentum", "moments")),
    blocks=_blocks,
    arguments=_arguments,
    defaults=_defaults,
    adjust=_adjust,
    counts=COUNTED,
    scalars=("momentum",),
    lazy=kept_with_momentum,
)
