"""Ftrl: one update everywhere but in the FtrlV2 kernel (the one for shrinkage) of TF 2.3 to 2.5, whose `linear` is
times lr.

Sources: `optimizer_v2/ftrl.py` 2.9 (lists are variable-major, alone among OptimizerV2's), `optimizers/ftrl.py` 2.15
and 3.15, `tensorflow/python/training/ftrl.py` 1.15; kernels of TF 2.0 to 2.9, each run.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms.spec import (
    ALWAYS_COUNTED,
    APART,
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

ACCUMULATOR, LINEAR, IN_LINEAR = "accumulator", "linear", "learning_rate_in_linear"
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
    """The kernels of TF 2.3 to 2.5 for dense gradients, in which Keras calls itself 2.4 and 2.5; those of TF 1.6 and
    1.8, which shrink by another formula than those of 1.12 to 1.14 (run)."""
    if generation not in ("optimizer_v2", "tf1") or not config[STRENGTHS[2]]:
        return {}, {}
    tensorflow, keras = versions.tensorflow_number, versions.keras_number
    if generation == "tf1" and tensorflow is not None and tensorflow < (1, 12):
        return {}, {STRENGTHS[2]: _OLD_SHRINKAGE}
    if tensorflow is None and keras is None:
        return {}, {IN_LINEAR: _DOUBT} | ({STRENGTHS[2]: _OLD_SHRINKAGE} if generation == "tf1" else {})
    scaled = (2, 3) <= tensorflow < (2, 6) if tensorflow else keras is not None and (2, 4) <= keras < (2, 6)
    return ({IN_LINEAR: True} if scaled else {}), {}


_DOUBT = (
    "l2_shrinkage_regularization_strength is set: TF 2.3 to 2.5 kept the slot linear multiplied by the learning rate,"
    " earlier and later ones do not, and the source does not say its release; it is taken not to be multiplied"
)

_OLD_SHRINKAGE = "with shrinkage, FtrlOptimizer of TF 1.5 to 1.8 and perhaps up to 1.11 steps by another formula"


def _lazy(config: Config, generation: str) -> str | None:
    """The kernel for rows did not multiply `linear`, in any release: no option of `optim` has both."""
    return APART if config.get(IN_LINEAR) else kept(config, generation)


ALGORITHM = Algorithm(
    name="Ftrl",
    slots=slots_of(FtrlRule(), accumulator=("accumulators", "accum"), linear=("linears",)),
    blocks=_blocks,
    arguments=_arguments,
    defaults=_defaults,
    adjust=always(ACCUMULATOR, LINEAR),
    counts=ALWAYS_COUNTED,
    scalars=("learning_rate_power", *STRENGTHS[:2], "beta"),
    generations=NEW | {"optimizer_v2", "tf1"},
    lazy=_lazy,
    by_release=_by_release,
)
