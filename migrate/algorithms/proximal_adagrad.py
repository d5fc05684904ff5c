"""ProximalAdagrad of tf.train and of TensorFlow Addons, which call one kernel.

Sources: `tensorflow/python/training/proximal_adagrad.py` 1.15; `optimizers/proximal_adagrad.py` of TensorFlow Addons
0.9 - 0.23.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms.spec import (
    ALWAYS_COUNTED,
    Algorithm,
    ByRelease,
    Config,
    Releases,
    always,
    apart,
    each_alone,
    number,
    slots_of,
)
from migrate.facts.rules import OLD, PROXIMAL_ADAGRAD
from migrate.generations import traits
from optim.rules.proximal_adagrad import ProximalAdagradRule


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    return {
        key: number(config, key)
        for key in ("initial_accumulator_value", "l1_regularization_strength", "l2_regularization_strength")
    }


def _defaults(generation: str) -> dict[str, Any]:
    defaults = {"learning_rate": 0.001} if traits(generation).has_configs else {}
    return {
        **defaults,
        "initial_accumulator_value": 0.1,
        "l1_regularization_strength": 0.0,
        "l2_regularization_strength": 0.0,
    }


def _by_release(config: Config, releases: Releases) -> ByRelease:
    l1 = "l1_regularization_strength"
    if not number(config, l1) or not PROXIMAL_ADAGRAD.may_be(OLD, releases):
        return {}, {}
    return {}, {l1: "with l1, ProximalAdagradOptimizer of TF 1.0 and perhaps up to 1.3 steps by another formula"}


ALGORITHM = Algorithm(
    name="ProximalAdagrad",
    slots=slots_of(ProximalAdagradRule(), accumulator=("accumulator",)),
    blocks=each_alone("accumulator"),
    arguments=_arguments,
    defaults=_defaults,
    adjust=always("accumulator"),
    counts=ALWAYS_COUNTED,
    scalars=("l1_regularization_strength", "l2_regularization_strength"),
    lazy=apart,
    by_release=_by_release,
)
