"""Adamax. Every generation has the same update; OptimizerV2 calls the maximum `v`, Keras 3 `norm`.

Sources: `keras/optimizers.py` 1.2.2 - 2.3.1, `optimizer_v2/adamax.py` 2.9, `optimizers/adamax.py` 2.15 and 3.15;
`tensorflow/contrib/opt/python/training/adamax.py` 1.15.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms import spec
from migrate.generations import traits
from optim.rules.adamax import AdamaxRule


def _defaults(generation: str) -> dict[str, Any]:
    rate = 0.002 if traits(generation).has_rates_of_papers else 0.001
    return {"learning_rate": rate, "beta_1": 0.9, "beta_2": 0.999, **spec.default_epsilon(generation)}


ALGORITHM = spec.Algorithm(
    name="Adamax",
    slots=spec.slots_of(AdamaxRule(), m=("m", "ms", "momentum", "momentums"), u=("u", "us", "v", "norm", "norms")),
    arguments=spec.numbers("beta_1", "beta_2", "epsilon"),
    defaults=_defaults,
    counts=spec.COUNTED,
    scalars=("beta_1", "beta_2"),
    in_float32=spec.rounded_betas,
    uses_count=True,
    lazy=spec.kept,
)
