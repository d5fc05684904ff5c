"""Lion, from tf.keras 2.13 on; one slot.

Sources: `optimizers/lion.py` 2.15 and 3.15.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms import spec
from migrate.facts.rules import ABSENT, LION
from migrate.generations import traits
from migrate.releases.narrowing import candidates
from optim.rules.lion import LionRule


def _defaults(generation: str) -> dict[str, Any]:
    return {"learning_rate": traits(generation).lion_rate, "beta_1": 0.9, "beta_2": 0.99}


def _check(config: spec.Config, generation: str, versions: spec.Versions) -> str | None:
    releases = candidates(generation, versions)
    if LION.of(releases) != ABSENT:
        return None
    major, minor = releases[-1].tensorflow
    return (
        f"Keras {major}.{minor} has no Lion, which is new in 2.13. This is a custom class of that name, such"
        " as the one of lion-tf, and dtopt does not know its rule. Restart from the weights"
    )


ALGORITHM = spec.Algorithm(
    name="Lion",
    slots=spec.slots_of(LionRule(), m=("momentums", "momentum")),
    arguments=spec.numbers("beta_1", "beta_2"),
    defaults=_defaults,
    in_float32=spec.rounded("beta_1", "beta_2"),
    check=_check,
)
