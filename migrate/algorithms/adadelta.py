"""Adadelta. Standalone Keras before 2.3 and tf.keras before 1.14 do not save its iterations (keras#13027).

Sources: `keras/optimizers.py` 1.2.2 - 2.3.1, `optimizer_v2/adadelta.py` 2.9, `optimizers/adadelta.py` 2.15
  and 3.15, `tensorflow/python/training/adadelta.py` 1.0 - 1.15 (whose first kernel was wrong).
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms.spec import (
    ALWAYS_COUNTED,
    Algorithm,
    Blocks,
    ByRelease,
    Config,
    Releases,
    always,
    default_epsilon,
    epsilon,
    in_list_orders,
    kept,
    number,
    rounded,
    slots_of,
)
from migrate.facts.rules import ADADELTA as RULE
from migrate.facts.rules import OLD
from migrate.generations import traits
from optim.rules.adadelta import AdadeltaRule

GRAD, DELTA = "accumulated_grad", "accumulated_delta_var"


def _blocks(generation: str, config: Config) -> tuple[Blocks, ...]:
    return in_list_orders(generation, GRAD, DELTA)


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    return {"rho": number(config, "rho"), "epsilon": epsilon(config, generation)}


def _defaults(generation: str) -> dict[str, Any]:
    rate = 1.0 if traits(generation).has_rates_of_papers else 0.001
    return {"learning_rate": rate, "rho": 0.95, **default_epsilon(generation)}


def _in_float32(arguments: Config, generation: str) -> dict[str, Any]:
    return rounded("rho")(arguments, generation) if traits(generation).casts_rho else {}


def _by_release(config: Config, releases: Releases) -> ByRelease:
    warning = RULE.warning(releases)
    doubts = {RULE.subject: f"the second slot of tf.train.AdadeltaOptimizer: {warning}"} if warning else {}
    return ({RULE.subject: True} if RULE.of(releases) == OLD else {}), doubts


ALGORITHM = Algorithm(
    name="Adadelta",
    slots=slots_of(
        AdadeltaRule(),
        accumulated_grad=("accumulated_grads", "accum_grad", "accumulators", "accumulator"),
        accumulated_delta_var=("accumulated_delta_vars", "accum_var", "delta_accumulators", "delta_accumulator"),
    ),
    blocks=_blocks,
    arguments=_arguments,
    defaults=_defaults,
    adjust=always(GRAD, DELTA),
    counts=ALWAYS_COUNTED,
    scalars=("rho",),
    in_float32=_in_float32,
    lazy=kept,
    by_release=_by_release,
)
