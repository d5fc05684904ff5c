"""NovoGrad of TensorFlow Addons, whose second moment is one number for each variable.

Source: `optimizers/novograd.py` of TensorFlow Addons 0.6 - 0.23.
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms import spec
from optim.rule import Slot
from optim.rules.novograd import NovoGradRule


def _blocks(generation: str, config: spec.Config) -> tuple[spec.Blocks, ...]:
    usual = (spec.Block(("m",)), spec.Block(("v",)))
    return (usual, (*usual, spec.Block(("vhat",))))


def _arguments(config: spec.Config, generation: str) -> dict[str, Any]:
    arguments = {key: spec.number(config, key) for key in ("beta_1", "beta_2")}
    arguments |= {"epsilon": spec.epsilon(config, generation), "grad_averaging": bool(config["grad_averaging"])}
    amount = spec.number(config, "weight_decay")
    return {**arguments, "weight_decay": amount, "weight_decay_exclude": []} if amount else arguments


def _adjust(arguments: spec.Config, present: frozenset[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Turn `amsgrad` on if the slots show it; no config contains it."""
    return ({"amsgrad": True}, ("m", "v", "vhat")) if "vhat" in present else ({}, ("m", "v"))


VHAT = spec.SlotSpec(Slot("vhat", unit="gradient^2", nonnegative=True, at_least="v"), ("vhat",), is_spread=True)
"""The slot in Addons has the variable's shape, and every element has the same value."""
ALGORITHM = spec.Algorithm(
    name="NovoGrad",
    slots=(*spec.slots_of(NovoGradRule(), m=("m",), v=("v",)), VHAT),
    blocks=_blocks,
    arguments=_arguments,
    defaults=spec.constants(
        learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-7, weight_decay=0.0, grad_averaging=False
    ),
    adjust=_adjust,
    counts=spec.COUNTED,
    scalars=("beta_1", "beta_2", "weight_decay", "grad_averaging"),
    in_float32=spec.rounded("beta_1", "beta_2"),
    uses_count=True,
    lazy=spec.custom_rows,
)
