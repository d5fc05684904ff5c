"""LARS of tf.contrib.opt and of tf-models, whose slot has the other sign: p ← p − slot.

Sources: `contrib/opt/python/training/lars_optimizer.py` of TensorFlow 1.15;
`official/modeling/optimization/lars_optimizer.py` of tf-models-official 2.9, whose config does not store what decays.
"""

from __future__ import annotations

import re
from typing import Any

from migrate.algorithms import spec
from migrate.algorithms.addons import EXCLUDED
from migrate.algorithms.lamb import NOT_ADAPTED
from migrate.generations import traits
from optim.arguments import patterns
from optim.errors import UnsupportedError
from optim.rules.lars import LARSRule


def _arguments(config: spec.Config, generation: str) -> dict[str, Any]:
    arguments = {"momentum": spec.number(config, "momentum"), "trust_coefficient": spec.number(config, "eeta")}
    arguments |= {"nesterov": bool(config["nesterov"])}
    if not traits(generation).has_tf_train_names:
        kept = list(patterns(EXCLUDED, config[EXCLUDED] or ()))
        left_out = {EXCLUDED: kept, NOT_ADAPTED: list(patterns(NOT_ADAPTED, config[NOT_ADAPTED] or kept))}
        return {**arguments, "weight_decay": spec.number(config, "weight_decay_rate"), "norm_of_sum": True, **left_out}
    skipped = config["skip_list"] or []
    if isinstance(skipped, str) or not all(isinstance(part, str) for part in skipped):
        raise UnsupportedError(f"skip_list must be a list of parts of names, got {skipped!r}")
    parts = [re.escape(part) for part in skipped]
    return {
        **arguments,
        "epsilon": spec.number(config, "epsilon"),
        "weight_decay": spec.number(config, "weight_decay"),
        EXCLUDED: parts,
        NOT_ADAPTED: parts,
    }


def _defaults(generation: str) -> dict[str, Any]:
    if not traits(generation).has_tf_train_names:
        numbers = {"learning_rate": 0.01, "momentum": 0.9, "weight_decay_rate": 0.0, "eeta": 0.001}
        return {**numbers, "nesterov": False, "classic_momentum": True, EXCLUDED: None, NOT_ADAPTED: None}
    numbers = {"momentum": 0.9, "weight_decay": 0.0001, "eeta": 0.001, "epsilon": 0.0}
    return {**numbers, "skip_list": None, "nesterov": False}


def _check(config: spec.Config, generation: str, versions: spec.Versions) -> str | None:
    if config.get("classic_momentum", True):
        return None
    return (
        "LARS with classic_momentum=False divides by the norm of its momentum, which no class of optim does."
        " To migrate its state for a custom rule, add --set own_rule=true"
    )


ALGORITHM = spec.Algorithm(
    name="LARS",
    slots=tuple(spec.SlotSpec(slot, ("momentum",), is_negated=True) for slot in LARSRule().slots),
    arguments=_arguments,
    defaults=_defaults,
    lazy=spec.custom_rows,  # In this class, sparse gradients get no ratio
    check=_check,
)
