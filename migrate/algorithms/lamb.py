"""LAMB of Keras 3.7 and later, and of TensorFlow Addons and tf-models, whose weights decay inside the step.

Sources: `optimizers/lamb.py` of Keras 3.15 and of TensorFlow Addons 0.23 (`weight_decay_rate` before 0.13).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from migrate.algorithms import adam
from migrate.algorithms.addons import EXCLUDED
from migrate.algorithms.spec import Config, epsilon, number
from migrate.generations import traits
from optim.arguments import patterns

NOT_ADAPTED = "exclude_from_layer_adaptation"


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    betas = {key: number(config, key) for key in ("beta_1", "beta_2")}
    arguments: dict[str, Any] = {**betas, "epsilon": epsilon(config, generation)}
    if not traits(generation).is_extended_by_addons:
        return arguments
    kept = list(patterns(EXCLUDED, config.get(EXCLUDED) or ()))
    amount = number(config, "weight_decay")
    if amount:
        arguments |= {"weight_decay": amount, EXCLUDED: kept, "decay_in_step": True}
    unadapted = list(patterns(NOT_ADAPTED, config.get(NOT_ADAPTED) or kept))
    return {**arguments, NOT_ADAPTED: unadapted} if unadapted else arguments


def _defaults(generation: str) -> dict[str, Any]:
    defaults = {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
    if not traits(generation).is_extended_by_addons:
        return defaults
    return {**defaults, "epsilon": 1e-6, "weight_decay": 0.0, EXCLUDED: None, NOT_ADAPTED: None}


ALGORITHM = replace(
    adam.ALGORITHM,
    name="Lamb",
    slots=adam.ALGORITHM.slots[:2],
    blocks=None,
    arguments=_arguments,
    defaults=_defaults,
    adjust=None,
    scalars=("beta_1", "beta_2", "weight_decay"),
)
