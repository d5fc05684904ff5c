"""Adam and AMSGrad. The update is one and the same in every generation; defaults, order and placeholders
differ.

Sources: `keras/optimizers.py` 1.2.2 - 2.3.1 (from 2.1.3 on with zeros of shape (1,) for vhat where amsgrad
  is off),
`optimizer_v2/adam.py` 2.9, `optimizers/adam.py` 2.15 and 3.15.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms.spec import COUNTED, SLOT_MAJOR, Algorithm, Block, Blocks, Config, SlotSpec, epsilon, number


def _blocks(generation: str, config: Config) -> tuple[Blocks, ...]:
    slot_major = (Block(("m",)), Block(("v",)))
    if generation == "experimental":
        moments = [slot_major, (Block(("m", "v")),)]
    else:
        moments = [slot_major if generation in SLOT_MAJOR else (Block(("m", "v")),)]
    if config["amsgrad"]:
        return tuple((*m, Block(("vhat",))) for m in moments)
    if generation in ("keras2", "keras2.3", "optimizer_v1"):
        moments.append((*slot_major, Block(("vhat",), placeholder=True)))
    return tuple(moments)


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    return {
        "beta_1": number(config, "beta_1"),
        "beta_2": number(config, "beta_2"),
        "epsilon": epsilon(config, generation),
        "amsgrad": bool(config["amsgrad"]),
    }


def _defaults(generation: str) -> dict[str, Any]:
    defaults: dict[str, Any] = {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "amsgrad": False}
    if generation in ("keras1", "tf1"):
        return {**defaults, "epsilon": 1e-8}
    # Keras 2.1.3 went from 1e-8 to 1e-7, so for keras2 a config must say it.
    return defaults if generation == "keras2" else {**defaults, "epsilon": 1e-7}


def _adjust(arguments: Config, present: frozenset[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    return {}, ("m", "v", "vhat") if arguments["amsgrad"] else ("m", "v")


ALGORITHM = Algorithm(
    name="Adam",
    slots=(
        SlotSpec("m", ("momentums", "momentum", "ms")),
        SlotSpec("v", ("velocities", "velocity", "vs"), nonnegative=True),
        SlotSpec("vhat", ("velocity_hats", "velocity_hat", "vhats"), nonnegative=True),
    ),
    blocks=_blocks,
    arguments=_arguments,
    defaults=_defaults,
    adjust=_adjust,
    counts=COUNTED,
    scalars=("beta_1", "beta_2"),
    rounded=("beta_1", "beta_2"),
    uses_count=True,
)
