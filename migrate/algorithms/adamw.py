"""AdamW: Adam with weight decay, from 2.10's experimental on. TF 2.9's had a defect that no AdamW can continue.

Sources: `optimizers/optimizer_experimental/adamw.py` 2.9 and 2.10, `optimizers/adamw.py` 2.15 and 3.15.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from migrate.algorithms import adam
from migrate.algorithms.spec import Config, Versions, number
from migrate.facts.rules import ADAMW, DEFECT
from migrate.releases.narrowing import candidates


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    decay = number(config, "weight_decay") if config["weight_decay"] is not None else 0.0
    return {"weight_decay": decay, **adam.ALGORITHM.arguments(config, generation)}


def _defaults(generation: str) -> dict[str, Any]:
    return {**adam.ALGORITHM.defaults(generation), "weight_decay": 0.004}


def _check(config: Config, generation: str, versions: Versions) -> str | None:
    if not ADAMW.may_be(DEFECT, candidates(generation, versions)):
        return None
    return (
        "optimizers.experimental.AdamW of TF 2.9 multiplied the weights by weight_decay times the learning"
        " rate at every step, which nearly sets them to zero. dtopt does not reproduce this defect, and the"
        " source shows no sign of a later release. No correct optimizer continues that run; start a new AdamW"
        " from the weights"
    )


ALGORITHM = replace(adam.ALGORITHM, name="AdamW", arguments=_arguments, defaults=_defaults, check=_check)
