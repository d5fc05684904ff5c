"""Yogi of TensorFlow Addons, whose list has v and m of one variable after the other, and that of keras-contrib, which
keeps Adam's.

Sources: `optimizers/yogi.py` of TensorFlow Addons 0.8 - 0.23; keras-contrib, see `keras_packages`.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms.spec import (
    COUNTED,
    Algorithm,
    Block,
    Blocks,
    Config,
    Versions,
    always,
    apart,
    number,
    rounded,
    slots_of,
)
from migrate.generations import traits
from optim.rules.yogi import YogiRule

NUMBERS = ("beta_1", "beta_2", "epsilon", "l1_regularization_strength", "l2_regularization_strength")


def _blocks(generation: str, config: Config) -> tuple[Blocks, ...]:
    if traits(generation).is_native:
        return ((Block(("m",)), Block(("v",)), Block(("v",), placeholder=True)),)
    return ((Block(("v", "m")),),)


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    start = number(config, "initial_accumulator_value")
    given = {key: number(config, key) for key in NUMBERS}
    return {**given, "initial_accumulator_value": start, "activation": str(config["activation"])}


def _defaults(generation: str) -> dict[str, Any]:
    return {
        "learning_rate": 0.01,
        "beta_1": 0.9,
        "beta_2": 0.999,
        "epsilon": 1e-3,
        "l1_regularization_strength": 0.0,
        "l2_regularization_strength": 0.0,
        "initial_accumulator_value": 1e-6,
        "activation": "sign",
    }


def _check(config: Config, generation: str, versions: Versions) -> str | None:
    if config["beta_1"]:
        return None
    return "Yogi with beta1 = 0 keeps no slot m, and optim's keeps one always: start it anew from the weights"


def _lazy(config: Config, generation: str) -> str | None:
    return apart(config, generation) if traits(generation).has_sparse_kernels else None


ALGORITHM = Algorithm(
    name="Yogi",
    slots=slots_of(YogiRule(), v=("v",), m=("m",)),
    blocks=_blocks,
    arguments=_arguments,
    defaults=_defaults,
    adjust=always("v", "m"),
    counts=COUNTED,
    scalars=NUMBERS,
    in_float32=rounded("beta_1", "beta_2"),
    uses_count=True,
    lazy=_lazy,
    check=_check,
)
