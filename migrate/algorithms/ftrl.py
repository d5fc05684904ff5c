"""Ftrl: one update everywhere except in the FtrlV2 kernel (the one for shrinkage) of TF 2.3 to 2.5.

That kernel keeps `linear` multiplied by the learning rate.

Sources: `optimizer_v2/ftrl.py` 2.9 (its lists are variable-major, the only ones in OptimizerV2), `optimizers/ftrl.py`
2.15 and 3.15, `tensorflow/python/training/ftrl.py` 1.15; kernels of TF 2.0 to 2.9, each run.
"""

from __future__ import annotations

from migrate.algorithms import spec
from migrate.facts.rules import FTRL_LINEAR, FTRL_SHRINKAGE, OLD, SCALED
from migrate.generations import traits
from optim.rules.ftrl import FtrlRule

ACCUMULATOR, LINEAR, IN_LINEAR = "accumulator", "linear", "learning_rate_in_linear"
STRENGTHS = ("l1_regularization_strength", "l2_regularization_strength", "l2_shrinkage_regularization_strength")


def _blocks(generation: str, config: spec.Config) -> tuple[spec.Blocks, ...]:
    pairs = (spec.Block((ACCUMULATOR, LINEAR)),)
    return (pairs,) if traits(generation).is_slot_major else spec.in_list_orders(generation, ACCUMULATOR, LINEAR)


def _by_release(config: spec.Config, releases: spec.Releases) -> spec.ByRelease:
    """Return arguments that depend on the kernel: dense ones with shrinkage differ in formula and in `linear`."""
    strength = STRENGTHS[2]
    if not config[strength]:
        return {}, {}
    doubts = {}
    if warning := FTRL_LINEAR.warning(releases):
        doubts[IN_LINEAR] = f"{strength} is set, and of the slot linear: {warning}"
    if FTRL_SHRINKAGE.may_be(OLD, releases):
        doubts[strength] = _OLD_SHRINKAGE
    return ({IN_LINEAR: True} if FTRL_LINEAR.of(releases) == SCALED else {}), doubts


_OLD_SHRINKAGE = "with shrinkage, FtrlOptimizer of TF 1.5 to 1.8 and perhaps up to 1.11 steps by another formula"


def _lazy(config: spec.Config, generation: str) -> str | None:
    """Return `lazy`. No release multiplied `linear` in the kernel for rows, and no option of `optim` does both."""
    return spec.APART if config.get(IN_LINEAR) else spec.kept(config, generation)


ALGORITHM = spec.Algorithm(
    name="Ftrl",
    slots=spec.slots_of(FtrlRule(), accumulator=("accumulators", "accum"), linear=("linears",)),
    blocks=_blocks,
    arguments=spec.numbers("learning_rate_power", "initial_accumulator_value", *STRENGTHS, "beta"),
    defaults=spec.constants(
        learning_rate=0.001,
        learning_rate_power=-0.5,
        initial_accumulator_value=0.1,
        **dict.fromkeys((*STRENGTHS, "beta"), 0.0),
    ),
    scalars=("learning_rate_power", *STRENGTHS[:2], "beta"),
    lazy=_lazy,
    by_release=_by_release,
)
