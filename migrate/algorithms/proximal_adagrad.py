"""ProximalAdagrad of tf.train and of TensorFlow Addons. Both call the same kernel.

Sources: `tensorflow/python/training/proximal_adagrad.py` 1.15; `optimizers/proximal_adagrad.py` of TensorFlow Addons
0.9 - 0.23.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms import spec
from migrate.facts.rules import OLD, PROXIMAL_ADAGRAD
from migrate.generations import traits
from optim.rules.proximal_adagrad import ProximalAdagradRule

STRENGTHS = ("l1_regularization_strength", "l2_regularization_strength")


def _defaults(generation: str) -> dict[str, Any]:
    rate = {"learning_rate": 0.001} if traits(generation).has_configs else {}
    return {**rate, "initial_accumulator_value": 0.1, **dict.fromkeys(STRENGTHS, 0.0)}


def _by_release(config: spec.Config, releases: spec.Releases) -> spec.ByRelease:
    l1 = STRENGTHS[0]
    if not spec.number(config, l1) or not PROXIMAL_ADAGRAD.may_be(OLD, releases):
        return {}, {}
    return {}, {l1: "with l1, ProximalAdagradOptimizer of TF 1.0 and perhaps up to 1.3 steps by another formula"}


ALGORITHM = spec.Algorithm(
    name="ProximalAdagrad",
    slots=spec.slots_of(ProximalAdagradRule(), accumulator=("accumulator",)),
    arguments=spec.numbers("initial_accumulator_value", *STRENGTHS),
    defaults=_defaults,
    scalars=STRENGTHS,
    lazy=spec.custom_rows,
    by_release=_by_release,
)
