"""The optimizers of PyTorch in `optim`'s terms: their state as slots, and the rule of a group.

Source: `torch/optim/{adam,adamw,sgd,rmsprop,adagrad,adadelta,adamax,nadam,radam}.py` 2.0 to 2.11.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from migrate.rules.comparison import Rule, spelled_out

Group = Mapping[str, Any]


def _moments(group: Group) -> dict[str, Any]:
    beta_1, beta_2 = group["betas"]
    return {"beta_1": float(beta_1), "beta_2": float(beta_2), "epsilon": float(group["eps"])}


def _adam(group: Group) -> dict[str, Any]:
    return {**_moments(group), "amsgrad": bool(group["amsgrad"])}


def _adamw(group: Group) -> dict[str, Any]:
    return {**_adam(group), "weight_decay": float(group["weight_decay"])}


def _sgd(group: Group) -> dict[str, Any]:
    momentum = float(group["momentum"])
    return {"momentum": momentum, "nesterov": bool(group["nesterov"]), "learning_rate_in_momentum": False}


def _rmsprop(group: Group) -> dict[str, Any]:
    outside = {"epsilon_inside": False, "learning_rate_in_momentum": False}
    named = {"rho": float(group["alpha"]), "momentum": float(group["momentum"]), "centered": bool(group["centered"])}
    return {**named, "epsilon": float(group["eps"]), **outside}


def _adagrad(group: Group) -> dict[str, Any]:
    return {"epsilon": float(group["eps"]), "epsilon_inside": False, "decay": float(group["lr_decay"])}


def _adadelta(group: Group) -> dict[str, Any]:
    return {"rho": float(group["rho"]), "epsilon": float(group["eps"])}


def _nadam(group: Group) -> dict[str, Any]:
    return {**_moments(group), "schedule_decay": float(group["momentum_decay"])}


def _radam(group: Group) -> dict[str, Any]:
    return {**_moments(group), "epsilon_hat": True, "total_steps": 0}


@dataclass(frozen=True)
class Kind:
    """One class: the class of `optim` with its rule, the arguments there, its state by slot, and its scalars.

    `coupled`: whether `weight_decay` is added to the gradient. `differs`: (group, steps made) -> why a step differs
    slightly from that of the class of `optim`; empty if it does not.
    """

    algorithm: str
    arguments: Callable[[Group], dict[str, Any]]
    slots: Mapping[str, str]
    counts: bool = True
    coupled: bool = True
    differs: Callable[[Group, int], str] = lambda group, steps: ""
    scalars: Mapping[str, str] = field(default_factory=dict)


def _epsilon(group: Group, steps: int) -> str:
    """torch adds epsilon to √(v/(1−β₂ᵗ)) and Keras to √v, times the same: a factor of √(1−β₂ᵗ) in epsilon."""
    factor = math.sqrt(1.0 - float(group["betas"][1]) ** (steps + 1))
    if group["eps"] == 0 or 1.0 - factor < 1e-6:
        return ""
    return (
        f"epsilon is added after the bias correction in torch and before it in the source: {factor:.3g} times as much"
        " at the next step, which matters if the root is about as small as epsilon, and less with each step"
    )


def _largest(group: Group, steps: int) -> str:
    return "epsilon is added to the gradient in the maximum in torch, and to the maximum in the source"


ADAM_SLOTS = {"m": "exp_avg", "v": "exp_avg_sq", "vhat": "max_exp_avg_sq"}
KINDS = {
    "Adam": Kind("Adam", _adam, ADAM_SLOTS, differs=_epsilon),
    "AdamW": Kind("AdamW", _adamw, ADAM_SLOTS, coupled=False, differs=_epsilon),
    "SGD": Kind("SGD", _sgd, {"m": "momentum_buffer"}, counts=False),
    "RMSprop": Kind(
        "RMSprop",
        _rmsprop,
        {"velocity": "square_avg", "momentum": "momentum_buffer", "average_gradient": "grad_avg"},
    ),
    "Adagrad": Kind("Adagrad", _adagrad, {"accumulator": "sum"}),
    "Adadelta": Kind("Adadelta", _adadelta, {"accumulated_grad": "square_avg", "accumulated_delta_var": "acc_delta"}),
    "Adamax": Kind("Adamax", _moments, {"m": "exp_avg", "u": "exp_inf"}, differs=_largest),
    "RAdam": Kind("RectifiedAdam", _radam, {"m": "exp_avg", "v": "exp_avg_sq"}),
    "NAdam": Kind("Nadam", _nadam, ADAM_SLOTS, scalars={"u_product": "mu_product"}),
}
"""By the name of the class in `torch.optim`."""
NEEDED_BY = {"vhat": "amsgrad", "momentum": "momentum", "average_gradient": "centered"}
"""Slot -> the option without which torch ignores it; a source without the slot restarts it."""


def rule_of(kind: Kind, group: Group) -> Rule:
    """The rule of a group of parameters."""
    rate = group["lr"]
    values = {"learning_rate": float(rate), **kind.arguments(group)}
    reasons = []
    if group.get("weight_decay"):
        values["weight_decay"] = float(group["weight_decay"])
        values["decoupled_weight_decay"] = bool(group.get("decoupled_weight_decay", not kind.coupled))
    if group.get("maximize"):
        reasons.append("the live optimizer maximizes")
    if group.get("dampening"):
        reasons.append("the live optimizer dampens its momentum, unlike any source")
    return Rule(kind.algorithm, spelled_out(kind.algorithm, values), None, tuple(reasons))
