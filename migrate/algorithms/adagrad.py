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
    epsilon_inside,
    number,
    slots_of,
)
from migrate.generations import traits
from optim.rules.adagrad import AdagradRule

ACCUMULATOR = "accumulator"


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    return {
        "initial_accumulator_value": number(config, "initial_accumulator_value"),
        "epsilon": epsilon(config, generation) if "epsilon" in config or _has_epsilon(generation) else 0.0,
        "epsilon_inside": epsilon_inside("Adagrad", generation, None),
    }


def _defaults(generation: str) -> dict[str, Any]:
    of = traits(generation)
    return {
        "learning_rate": 0.01 if of.has_rates_of_papers else 0.001,
        "initial_accumulator_value": of.initial_accumulator,
        **(default_epsilon(generation) if _has_epsilon(generation) else {}),
    }


def _has_epsilon(generation: str) -> bool:
    return "Adagrad" not in traits(generation).no_epsilon


ALGORITHM = Algorithm(
    name="Adagrad",
    slots=slots_of(AdagradRule(), accumulator=("accumulators",)),
    blocks=each_alone(ACCUMULATOR),
    arguments=_arguments,
    defaults=_defaults,
    adjust=always(ACCUMULATOR),
    counts=ALWAYS_COUNTED,
)
