"""Adadelta. Standalone Keras before 2.3 and tf.keras before 1.14 do not save its iterations (keras#13027).

Sources: `keras/optimizers.py` 1.2.2 - 2.3.1, `optimizer_v2/adadelta.py` 2.9, `optimizers/adadelta.py` 2.15
and 3.15, `tensorflow/python/training/adadelta.py` 1.0 - 1.15. The first kernel of tf.train was wrong.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms import spec
from migrate.facts.rules import ADADELTA as RULE
from migrate.facts.rules import OLD
from migrate.generations import traits
from optim.rules.adadelta import AdadeltaRule

GRAD, DELTA = "accumulated_grad", "accumulated_delta_var"


def _defaults(generation: str) -> dict[str, Any]:
    rate = 1.0 if traits(generation).has_rates_of_papers else 0.001
    return {"learning_rate": rate, "rho": 0.95, **spec.default_epsilon(generation)}


def _in_float32(arguments: spec.Config, generation: str) -> dict[str, Any]:
    return spec.rounded("rho")(arguments, generation) if traits(generation).casts_rho else {}


def _by_release(config: spec.Config, releases: spec.Releases) -> spec.ByRelease:
    warning = RULE.warning(releases)
    doubts = {RULE.subject: f"the second slot of tf.train.AdadeltaOptimizer: {warning}"} if warning else {}
    return ({RULE.subject: True} if RULE.of(releases) == OLD else {}), doubts


ALGORITHM = spec.Algorithm(
    name="Adadelta",
    slots=spec.slots_of(
        AdadeltaRule(),
        accumulated_grad=("accumulated_grads", "accum_grad", "accumulators", "accumulator"),
        accumulated_delta_var=("accumulated_delta_vars", "accum_var", "delta_accumulators", "delta_accumulator"),
    ),
    arguments=spec.numbers("rho", "epsilon"),
    defaults=_defaults,
    scalars=("rho",),
    in_float32=_in_float32,
    lazy=spec.kept,
    by_release=_by_release,
)
