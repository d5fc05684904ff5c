"""Adamax, the same update in every generation; OptimizerV2 calls the maximum `v`, Keras 3 `norm`.

Sources: `keras/optimizers.py` 1.2.2 - 2.3.1, `optimizer_v2/adamax.py` 2.9, `optimizers/adamax.py` 2.15 and 3.15;
`tensorflow/contrib/opt/python/training/adamax.py` 1.15.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms.spec import (
    COUNTED,
    Algorithm,
    Blocks,
    Config,
    always,
    default_epsilon,
    epsilon,
    in_list_orders,
    kept,
    number,
    rounded_betas,
    slots_of,
)
from migrate.generations import traits
from optim.rules.adamax import AdamaxRule


def _blocks(generation: str, config: Config) -> tuple[Blocks, ...]:
    return in_list_orders(generation, "m", "u")


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    betas = {key: number(config, key) for key in ("beta_1", "beta_2")}
    return {**betas, "epsilon": epsilon(config, generation)}


def _defaults(generation: str) -> dict[str, Any]:
    rate = 0.002 if traits(generation).has_rates_of_papers else 0.001
    return {"learning_rate": rate, "beta_1": 0.9, "beta_2": 0.999, **default_epsilon(generation)}


ALGORITHM = Algorithm(
    name="Adamax",
    slots=slots_of(AdamaxRule(), m=("m", "ms", "momentum", "momentums"), u=("u", "us", "v", "norm", "norms")),
    blocks=_blocks,
    arguments=_arguments,
    defaults=_defaults,
    adjust=always("m", "u"),
    counts=COUNTED,
    scalars=("beta_1", "beta_2"),
    in_float32=rounded_betas,
    uses_count=True,
    lazy=kept,
)
