"""Yogi of TensorFlow Addons, which lists v and m of one variable after the other, and of keras-contrib.

Yogi of keras-contrib has Adam's list.

Sources: `optimizers/yogi.py` of TensorFlow Addons 0.8 - 0.23; keras-contrib, see `keras_packages`.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms import spec
from migrate.generations import traits
from optim.rules.yogi import YogiRule

STRENGTHS = {"l1_regularization_strength": 0.0, "l2_regularization_strength": 0.0}
NUMBERS = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-3, **STRENGTHS}


def _blocks(generation: str, config: spec.Config) -> tuple[spec.Blocks, ...]:
    if traits(generation).is_native:
        return ((spec.Block(("m",)), spec.Block(("v",)), spec.Block(("v",), placeholder=True)),)
    return ((spec.Block(("v", "m")),),)


def _arguments(config: spec.Config, generation: str) -> dict[str, Any]:
    start = spec.number(config, "initial_accumulator_value")
    numbers = {key: spec.number(config, key) for key in NUMBERS}
    return {**numbers, "initial_accumulator_value": start, "activation": str(config["activation"])}


def _check(config: spec.Config, generation: str, versions: spec.Versions) -> str | None:
    if config["beta_1"]:
        return None
    return "Yogi with beta1 = 0 has no slot m, and optim's Yogi always has one; start a new optimizer from the weights"


def _lazy(config: spec.Config, generation: str) -> str | None:
    return spec.custom_rows(config, generation) if traits(generation).has_sparse_kernels else None


ALGORITHM = spec.Algorithm(
    name="Yogi",
    slots=spec.slots_of(YogiRule(), v=("v",), m=("m",)),
    blocks=_blocks,
    arguments=_arguments,
    defaults=spec.constants(learning_rate=0.01, **NUMBERS, initial_accumulator_value=1e-6, activation="sign"),
    counts=spec.COUNTED,
    scalars=tuple(NUMBERS),
    in_float32=spec.rounded("beta_1", "beta_2"),
    uses_count=True,
    lazy=_lazy,
    check=_check,
)
