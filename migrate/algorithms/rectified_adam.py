"""RectifiedAdam of TensorFlow Addons. Its weight decay is multiplied by the rate and stored as a variable.

Sources: `optimizers/rectified_adam.py` of TensorFlow Addons 0.6 - 0.23; keras-rectified-adam, see `keras_packages`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from migrate.algorithms import adam
from migrate.algorithms.spec import STILL, Config, number, rounded
from migrate.generations import traits

WARMED = ("sma_threshold", "total_steps", "warmup_proportion", "min_lr")


def decayed(config: Config) -> dict[str, Any]:
    """Return the weight decay of all variables: these classes have no exclusions."""
    amount = number(config, "weight_decay")
    return {"weight_decay": amount, "weight_decay_exclude": []} if amount else {}


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    warmed = {key: number(config, key) for key in WARMED}
    return {**adam.ALGORITHM.arguments(config, generation), **warmed, **decayed(config)}


def _defaults(generation: str) -> dict[str, Any]:
    warmed = {"sma_threshold": 5.0, "total_steps": 0, "warmup_proportion": 0.1, "min_lr": 0.0}
    return {**adam.ALGORITHM.defaults(generation), "weight_decay": 0.0, **warmed}


def in_float32(arguments: Config, generation: str) -> dict[str, Any]:
    """Return the rounded arguments. Every number is a float32, and so are the powers of β and ρ_t."""
    return {"float32_powers": True, **rounded("beta_1", "beta_2")(arguments, generation)}


def lazy(config: Config, generation: str) -> str | None:
    """Return `lazy`: in OptimizerV2, rows without a gradient keep their values, and their means decay."""
    return STILL if traits(generation).has_sparse_kernels else None


ALGORITHM = replace(
    adam.ALGORITHM,
    name="RectifiedAdam",
    arguments=_arguments,
    defaults=_defaults,
    scalars=("beta_1", "beta_2", "weight_decay", *WARMED),
    in_float32=in_float32,
    lazy=lazy,
)
