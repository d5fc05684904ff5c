"""Ftrl: one update everywhere but in the FtrlV2 kernel (the one for shrinkage) of TF 2.4, whose `linear` is times lr.

Sources: `optimizer_v2/ftrl.py` 2.9 (lists are variable-major, alone among OptimizerV2's), `optimizers/ftrl.py` 2.15
and 3.15, `tensorflow/python/training/ftrl.py` 1.15; kernels of TF 2.2, 2.4, 2.6, 2.8, 2.9, each run.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms.spec import (
    ALWAYS_COUNTED,
    Algorithm,
    Block,
    Blocks,
    ByRelease,
    Config,
    Versions,
    always,
    kept,
    number,
    slots_of,
)
from migrate.generations import NEW
from optim.rules.ftrl import FtrlRule

ACCUMULATOR, LINEAR = "accumulator", "linear"
STRENGTHS = ("l1_regularization_strength", "l2_regularization_strength", "l2_shrinkage_regularization_strength")


def _blocks(generation: str, config: Config) -> tuple[Blocks, ...]:
    pairs = (Block((ACCUMULATOR, LINEAR)),)
    return ((Block((ACCUMULATOR,)), Block((LINEAR,))), pairs) if generation == "experimental" else (pairs,)


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    keys = ("learning_rate_power", "initial_accumulator_value", *STRENGTHS, "beta")
    return {key: number(config, key) for key in keys}


def _defaults(generation: str) -> dict[str, Any]:
    strengths = dict.fromkeys((*STRENGTHS, "beta"), 0.0)
    return {"learning_rate": 0.001, "learning_rate_power": -0.5, "initial_accumulator_value": 0.1, **strengths}


def _by_release(config: Config, generation: str, versions: Versions) -> ByRelease:
    """Which releases have TF 2.4's kernel is known for those that were run; and Keras 2.4.0 is TF 2.3's, too."""
    if generation != "optimizer_v2" or not config["l2_shrinkage_regularization_strength"]:
        return {}, {}
    release = versions.get("tensorflow") or versions.get("keras") or ""
    scaled = {"learning_rate_in_linear": True} if release.startswith("2.4.") else {}
    unsure = ("2.3.", "2.5.") if versions.get("tensorflow") else ("2.4.0", "2.5.")
    return scaled, {"learning_rate_in_linear": _DOUBT} if not release or release.startswith(unsure) else {}


_DOUBT = (
    "l2_shrinkage_regularization_strength is set: TF 2.4 kept the slot linear multiplied by the learning rate, TF 2.2"
    " and from 2.6 on it was not, and the source does not say its release well enough; it is taken to be multiplied"
    " only if its Keras calls itself 2.4"
)


ALGORITHM = Algorithm(
    name="Ftrl",
    slots=slots_of(FtrlRule(), accumulator=("accumulators", "accum"), linear=("linears",)),
    blocks=_blocks,
    arguments=_arguments,
    defaults=_defaults,
    adjust=always(ACCUMULATOR, LINEAR),
    counts=ALWAYS_COUNTED,
    scalars=("learning_rate_power", *STRENGTHS, "beta"),
    generations=NEW | {"optimizer_v2", "tf1"},
    lazy=kept,
    by_release=_by_release,
)
