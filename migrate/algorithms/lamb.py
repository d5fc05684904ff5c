"""LAMB, from Keras 3.7 on.

Source: `optimizers/lamb.py` 3.15.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from migrate.algorithms import adam
from migrate.algorithms.spec import Block, Blocks, Config, epsilon, number


def _blocks(generation: str, config: Config) -> tuple[Blocks, ...]:
    return ((Block(("m", "v")),),)


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    betas = {key: number(config, key) for key in ("beta_1", "beta_2")}
    return {**betas, "epsilon": epsilon(config, generation)}


def _defaults(generation: str) -> dict[str, Any]:
    return {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}


def _adjust(arguments: Config, present: frozenset[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    return {}, ("m", "v")


ALGORITHM = replace(
    adam.ALGORITHM,
    name="Lamb",
    slots=adam.ALGORITHM.slots[:2],
    blocks=_blocks,
    arguments=_arguments,
    defaults=_defaults,
    adjust=_adjust,
    generations=frozenset({"keras3"}),
)
