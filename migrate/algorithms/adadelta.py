"""Adadelta. Standalone Keras before 2.3 and tf.keras before 1.14 do not save its iterations (keras#13027).

Sources: `keras/optimizers.py` 1.2.2 - 2.3.1, `optimizer_v2/adadelta.py` 2.9, `optimizers/adadelta.py` 2.15
  and 3.15, `tensorflow/python/training/adadelta.py` 1.0 - 1.15 (whose first kernel was wrong).
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms.spec import (
    ALWAYS_COUNTED,
    SLOT_MAJOR,
    Algorithm,
    Block,
    Blocks,
    ByRelease,
    Config,
    Releases,
    always,
    default_epsilon,
    epsilon,
    kept,
    number,
    rounded_before,
    slots_of,
)
from migrate.facts.rules import ADADELTA as RULE
from migrate.facts.rules import OLD
from migrate.generations import EXPERIMENTAL, NATIVE, NEW
from optim.rules.adadelta import AdadeltaRule

GRAD, DELTA = "accumulated_grad", "accumulated_delta_var"


def _blocks(generation: str, config: Config) -> tuple[Blocks, ...]:
    slot_major, pairs = (Block((GRAD,)), Block((DELTA,))), (Block((GRAD, DELTA)),)
    if generation == EXPERIMENTAL:
        return (slot_major, pairs)
    return (slot_major,) if generation in SLOT_MAJOR else (pairs,)


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    return {"rho": number(config, "rho"), "epsilon": epsilon(config, generation)}


def _defaults(generation: str) -> dict[str, Any]:
    native = generation in NATIVE
    defaults: dict[str, Any] = {"learning_rate": 1.0 if native else 0.001, "rho": 0.95}
    return {**defaults, **default_epsilon(generation)}


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
    in_float32=rounded_before(NEW | NATIVE, "rho"),  # which Keras up to 2.3 keeps as a Python number
    lazy=kept,
    by_release=_by_release,
)
