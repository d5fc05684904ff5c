"""LARS of tf.contrib.opt, whose slot has the other sign: p ← p − slot.

Source: `contrib/opt/python/training/lars_optimizer.py` of TensorFlow 1.15.
"""

from __future__ import annotations

import re
from typing import Any

from migrate.algorithms.addons import EXCLUDED
from migrate.algorithms.lamb import NOT_ADAPTED
from migrate.algorithms.spec import APART, Algorithm, Blocks, Config, SlotSpec, number
from optim.errors import UnsupportedError
from optim.rules.lars import LARSRule


def _blocks(generation: str, config: Config) -> tuple[Blocks, ...]:
    return ()


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    given = {"momentum": number(config, "momentum"), "trust_coefficient": number(config, "eeta")}
    skipped = config["skip_list"] or []
    if isinstance(skipped, str) or not all(isinstance(part, str) for part in skipped):
        raise UnsupportedError(f"skip_list must be a list of parts of names, got {skipped!r}")
    patterns = [re.escape(part) for part in skipped]
    return {
        **given,
        "epsilon": number(config, "epsilon"),
        "nesterov": bool(config["nesterov"]),
        "weight_decay": number(config, "weight_decay"),
        EXCLUDED: patterns,
        NOT_ADAPTED: patterns,
    }


def _defaults(generation: str) -> dict[str, Any]:
    numbers = {"momentum": 0.9, "weight_decay": 0.0001, "eeta": 0.001, "epsilon": 0.0}
    return {**numbers, "skip_list": None, "nesterov": False}


def _adjust(arguments: Config, present: frozenset[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    return {}, ("m",)


def _lazy(config: Config, generation: str) -> str | None:
    """Sparse gradients get no ratio there."""
    return APART


ALGORITHM = Algorithm(
    name="LARS",
    slots=tuple(SlotSpec(slot, ("momentum",), is_negated=True) for slot in LARSRule().slots),
    blocks=_blocks,
    arguments=_arguments,
    defaults=_defaults,
    adjust=_adjust,
    counts=frozenset(),
    generations=frozenset({"tf1"}),
    elsewhere=frozenset({"tf1"}),
    lazy=_lazy,
)
