"""Adagrad. Epsilon is outside the root in Keras before 2.3 and OptimizerV2, inside from 2.9's experimental on.

Sources: `keras/optimizers.py` 1.2.2 - 2.3.1, `optimizer_v2/adagrad.py` 2.9, `optimizers/adagrad.py` 2.15 and 3.15,
`tensorflow/python/training/adagrad.py` 1.15 (no epsilon at all).
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms.spec import (
    ALWAYS_COUNTED,
    Algorithm,
    Config,
    always,
    default_epsilon,
    each_alone,
    epsilon,
    number,
    slots_of,
)
from migrate.generations import NATIVE, NEW, TF1
from optim.rules.adagrad import AdagradRule

ACCUMULATOR = "accumulator"


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    return {
        "initial_accumulator_value": number(config, "initial_accumulator_value"),
        "epsilon": 0.0 if generation == TF1 and "epsilon" not in config else epsilon(config, generation),
        "epsilon_inside": generation in NEW,
    }


def _defaults(generation: str) -> dict[str, Any]:
    native = generation in NATIVE
    defaults: dict[str, Any] = {
        "learning_rate": 0.01 if native else 0.001,
        "initial_accumulator_value": 0.0 if native else 0.1,
    }
    return {**defaults, **default_epsilon(generation, of_tf_train=None)}


ALGORITHM = Algorithm(
    name="Adagrad",
    slots=slots_of(AdagradRule(), accumulator=("accumulators",)),
    blocks=each_alone(ACCUMULATOR),
    arguments=_arguments,
    defaults=_defaults,
    adjust=always(ACCUMULATOR),
    counts=ALWAYS_COUNTED,
)
