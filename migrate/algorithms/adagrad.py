"""Adagrad. Epsilon is outside the root in Keras before 2.3 and in OptimizerV2, inside from 2.9's experimental on.

Sources: `keras/optimizers.py` 1.2.2 - 2.3.1, `optimizer_v2/adagrad.py` 2.9, `optimizers/adagrad.py` 2.15 and 3.15,
`tensorflow/python/training/adagrad.py` 1.15 (no epsilon at all).
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms import spec
from migrate.generations import traits
from optim.rules.adagrad import AdagradRule

ACCUMULATOR = "accumulator"


def _arguments(config: spec.Config, generation: str) -> dict[str, Any]:
    return {
        "initial_accumulator_value": spec.number(config, "initial_accumulator_value"),
        "epsilon": spec.epsilon(config, generation) if "epsilon" in config or _has_epsilon(generation) else 0.0,
        "epsilon_inside": spec.epsilon_inside("Adagrad", generation, None),
    }


def _defaults(generation: str) -> dict[str, Any]:
    of = traits(generation)
    return {
        "learning_rate": 0.01 if of.has_rates_of_papers else 0.001,
        "initial_accumulator_value": of.initial_accumulator,
        **(spec.default_epsilon(generation) if _has_epsilon(generation) else {}),
    }


def _has_epsilon(generation: str) -> bool:
    return "Adagrad" not in traits(generation).no_epsilon


ALGORITHM = spec.Algorithm(
    name="Adagrad",
    slots=spec.slots_of(AdagradRule(), accumulator=("accumulators",)),
    arguments=_arguments,
    defaults=_defaults,
)
