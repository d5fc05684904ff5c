"""RMSprop. The releases differ in the places of epsilon and of the learning rate; `optim` has a keyword for each.

Sources: `keras/optimizers.py` 1.2.2 - 2.3.1, `optimizer_v2/rmsprop.py` 2.9 (the fused kernels with momentum),
`optimizers/optimizer_experimental/rmsprop.py` 2.9, `optimizers/rmsprop.py` 2.15 and 3.15,
`tensorflow/python/training/rmsprop.py` 1.15.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms import spec
from migrate.facts.rules import CENTERED, DEFECT
from migrate.generations import traits
from migrate.releases.narrowing import candidates
from optim.rules.rmsprop import RMSpropRule

VELOCITY, MOMENTUM, AVERAGE_GRADIENT = "velocity", "momentum", "average_gradient"


def _blocks(generation: str, config: spec.Config) -> tuple[spec.Blocks, ...]:
    slots = [VELOCITY]
    if traits(generation).rmsprop_has_momentum:
        slots += [MOMENTUM] if config["momentum"] else []
        slots += [AVERAGE_GRADIENT] if config["centered"] else []
    return (tuple(spec.Block((slot,)) for slot in slots),)


def _arguments(config: spec.Config, generation: str) -> dict[str, Any]:
    momentum, of = spec.number(config, "momentum"), traits(generation)
    arguments: dict[str, Any] = {
        "rho": spec.number(config, "rho"),
        "momentum": momentum,
        "epsilon": spec.epsilon(config, generation),
        "centered": bool(config["centered"]),
        "epsilon_inside": spec.epsilon_inside("RMSprop", generation, momentum > 0),
    }
    if of.rmsprop_rate_outside:
        arguments["learning_rate_in_momentum"] = False
    if of.rmsprop_start:
        arguments["initial_velocity"] = of.rmsprop_start
    return arguments


def _defaults(generation: str) -> dict[str, Any]:
    shared: dict[str, Any] = {"learning_rate": 0.001, "rho": 0.9, "momentum": 0.0, "centered": False}
    epsilon = traits(generation).rmsprop_epsilon
    return {**shared, **(spec.default_epsilon(generation) if epsilon is None else {"epsilon": epsilon})}


def _adjust(arguments: spec.Config, present: frozenset[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    slots = [VELOCITY]
    more = {}
    if arguments["momentum"] or MOMENTUM in present:
        slots.append(MOMENTUM)
        more = {} if arguments["momentum"] else {"momentum_slot": True}
    if arguments["centered"]:
        slots.append(AVERAGE_GRADIENT)
    return more, tuple(slots)


def _lazy(config: spec.Config, generation: str) -> str | None:
    """Return `lazy`. tf.train uses its sparse kernel even without momentum, and so keeps the means of other rows."""
    return (spec.kept if traits(generation).rmsprop_keeps_momentum else spec.kept_with_momentum)(config, generation)


def _check(config: spec.Config, generation: str, versions: spec.Versions) -> str | None:
    if not config["centered"] or not CENTERED.may_be(DEFECT, candidates(generation, versions)):
        return None
    return (
        "centered RMSprop of optimizers.experimental (and DTensor) in TF 2.9 and 2.10 averaged squared"
        " gradients instead of gradients and wrote the difference back into its slot. No correct RMSprop can"
        " continue from this state; start a new optimizer from the weights"
    )


ALGORITHM = spec.Algorithm(
    name="RMSprop",
    slots=spec.slots_of(
        RMSpropRule(centered=True, momentum_slot=True),
        velocity=("velocities", "rms", "accumulators", "accumulator"),
        momentum=("momentums",),
        average_gradient=("average_gradients", "mg"),
    ),
    blocks=_blocks,
    arguments=_arguments,
    defaults=_defaults,
    adjust=_adjust,
    scalars=("rho", "momentum"),
    in_float32=spec.rounded_if_cast("rho"),
    lazy=_lazy,
    check=_check,
)
