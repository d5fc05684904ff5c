"""Adam and AMSGrad. Every generation has the same update; defaults, order and placeholders differ.

Sources: `keras/optimizers.py` 1.2.2 - 2.3.1 (from 2.1.3 on with zeros of shape (1,) for vhat if amsgrad is off),
`optimizer_v2/adam.py` 2.9, `optimizers/adam.py` 2.15 and 3.15.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms import spec
from migrate.algorithms.addons import CORRECTED, LAZY, NESTEROV
from migrate.generations import traits
from optim.rules.adam import AdamRule


def _blocks(generation: str, config: spec.Config) -> tuple[spec.Blocks, ...]:
    moments = [*spec.in_list_orders(generation, "m", "v")]
    if config["amsgrad"]:
        return tuple((*m, spec.Block(("vhat",))) for m in moments)
    if traits(generation).pads_amsgrad:
        moments.append((*moments[0], spec.Block(("vhat",), placeholder=True)))
    return tuple(moments)


def _arguments(config: spec.Config, generation: str) -> dict[str, Any]:
    return {
        "beta_1": spec.number(config, "beta_1"),
        "beta_2": spec.number(config, "beta_2"),
        "epsilon": spec.epsilon(config, generation),
        "amsgrad": bool(config["amsgrad"]),
        **({} if config.get(CORRECTED, True) else {CORRECTED: False}),
        **({NESTEROV: True} if config.get(NESTEROV) else {}),
    }


def _defaults(generation: str) -> dict[str, Any]:
    defaults: dict[str, Any] = {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "amsgrad": False}
    return {**defaults, **spec.default_epsilon(generation)}


def _adjust(arguments: spec.Config, present: frozenset[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    return {}, ("m", "v", "vhat") if arguments["amsgrad"] else ("m", "v")


def _in_float32(arguments: spec.Config, generation: str) -> dict[str, Any]:
    """Return the rounded betas. BERT's optimizer is the exception: it computes 1 − β from Python numbers."""
    return spec.rounded_betas(arguments, generation) if arguments.get(CORRECTED, True) else {}


def _lazy(config: spec.Config, generation: str) -> str | None:
    """Return `lazy`, which only LazyAdam and the Nadam of tf.contrib.opt set, see `addons`."""
    if config.get(LAZY):
        return spec.KEPT
    return spec.APART if config.get(NESTEROV) else None


ALGORITHM = spec.Algorithm(
    name="Adam",
    slots=spec.slots_of(
        AdamRule(amsgrad=True),
        m=("momentums", "momentum", "ms"),
        v=("velocities", "velocity", "vs"),
        vhat=("velocity_hats", "velocity_hat", "vhats"),
    ),
    blocks=_blocks,
    arguments=_arguments,
    defaults=_defaults,
    adjust=_adjust,
    counts=spec.COUNTED,
    scalars=("beta_1", "beta_2"),
    in_float32=_in_float32,
    uses_count=True,
    lazy=_lazy,
)
