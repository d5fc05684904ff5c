"""SGD. Standalone Keras and 2.11+ keep the slot even with momentum 0; OptimizerV2 and Keras 3 only with momentum.

Sources: `keras/optimizers.py` 1.2.2 - 2.3.1, `optimizer_v2/gradient_descent.py` 2.9, `optimizers/sgd.py` 2.15 and 3.15,
`tensorflow/python/training/momentum.py` 1.15 (the learning rate outside the slot).
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms import spec
from migrate.generations import NEVER, traits
from optim.rules.sgd import SGDRule


def _blocks(generation: str, config: spec.Config) -> tuple[spec.Blocks, ...]:
    momentum: spec.Blocks = (spec.Block(("m",)),)
    of = traits(generation)
    if spec.number(config, "momentum") or of.keeps_idle_momentum:
        return (momentum,)
    return ((),) if of.sgd_momentum == NEVER else ((), momentum)


def _arguments(config: spec.Config, generation: str) -> dict[str, Any]:
    arguments = {"momentum": spec.number(config, "momentum"), "nesterov": bool(config["nesterov"])}
    return {**arguments, "learning_rate_in_momentum": False} if traits(generation).sgd_rate_outside else arguments


def _adjust(arguments: spec.Config, present: frozenset[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    if arguments["momentum"]:
        return {}, ("m",)
    return ({"momentum_slot": True}, ("m",)) if "m" in present else ({}, ())


ALGORITHM = spec.Algorithm(
    name="SGD",
    slots=spec.slots_of(SGDRule(momentum_slot=True), m=("momentums", "momentum", "moments")),
    blocks=_blocks,
    arguments=_arguments,
    defaults=spec.constants(learning_rate=0.01, momentum=0.0, nesterov=False),
    adjust=_adjust,
    counts=spec.COUNTED,
    scalars=("momentum",),
    lazy=spec.kept_with_momentum,
)
