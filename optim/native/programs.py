"""Which rules `update.cc` knows, and the order of their slots and scalars there.

Structural choices that only move a scalar are expressed in scalars: what is inside the root or the momentum in one
release and outside in another enters twice, once as 0 or 1, which changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from optim.rule import Rule
from optim.rules.adadelta import AdadeltaRule
from optim.rules.adagrad import AdagradRule
from optim.rules.adam import AdamRule
from optim.rules.adamax import AdamaxRule
from optim.rules.ftrl import FtrlRule
from optim.rules.lion import LionRule
from optim.rules.nadam import NadamRule
from optim.rules.rmsprop import RMSpropRule
from optim.rules.sgd import SGDRule

Scalars = Mapping[str, float]


@dataclass(frozen=True)
class Program:
    """A rule as the op knows it: its name there, its slots in order, and its scalars from the rule's coefficients."""

    name: str
    slots: tuple[str, ...]
    scalars: Callable[[Scalars], list[float]]


def _pick(*names: str) -> Callable[[Scalars], list[float]]:
    return lambda c: [c[name] for name in names]


def _sgd(rule: SGDRule) -> Program:
    if not rule.keeps_momentum:
        return Program("sgd", (), _pick("lr"))
    name = "nesterov" if rule.nesterov else "momentum"
    if rule.learning_rate_in_momentum:
        return Program(name, ("m",), lambda c: [-c["lr"], 1.0, c["momentum"]])
    return Program(name, ("m",), lambda c: [1.0, -c["lr"], c["momentum"]])


def _adam(rule: AdamRule) -> Program:
    scalars = _pick("alpha", "one_minus_beta_1", "one_minus_beta_2", "epsilon")
    return Program("amsgrad", ("m", "v", "vhat"), scalars) if rule.amsgrad else Program("adam", ("m", "v"), scalars)


def _adadelta(rule: AdadeltaRule) -> Program:
    name = "adadelta_new_delta" if rule.new_delta_in_step else "adadelta"
    slots = ("accumulated_grad", "accumulated_delta_var")
    return Program(name, slots, _pick("lr", "rho", "one_minus_rho", "epsilon"))


def _epsilons(is_inside: bool, c: Scalars) -> list[float]:
    return [c["epsilon"], 0.0] if is_inside else [0.0, c["epsilon"]]


def _adagrad(rule: AdagradRule) -> Program:
    return Program("adagrad", ("accumulator",), lambda c: [c["lr"], *_epsilons(rule.epsilon_inside, c)])


def _rmsprop(rule: RMSpropRule) -> Program:
    parts = ["rmsprop", *["momentum"] * rule.keeps_momentum, *["centered"] * rule.centered]

    def scalars(c: Scalars) -> list[float]:
        inside = rule.learning_rate_in_momentum or not rule.keeps_momentum
        rates = [c["lr"], 1.0] if inside else [1.0, c["lr"]]
        return [c["rho"], c["one_minus_rho"], *_epsilons(rule.epsilon_inside, c), *rates, c["momentum"]]

    return Program("_".join(parts), tuple(slot.name for slot in rule.slots), scalars)


def _lion(rule: LionRule) -> Program:
    return Program("lion", ("m",), _pick("lr", "beta_1", "one_minus_beta_1", "beta_2", "one_minus_beta_2"))


def _adamax(rule: AdamaxRule) -> Program:
    return Program("adamax", ("m", "u"), _pick("alpha", "one_minus_beta_1", "beta_2", "epsilon"))


def _nadam(rule: NadamRule) -> Program:
    names = ("one_minus_beta_1", "one_minus_beta_2", "momentum_weight", "gradient_weight", "v_correction", "epsilon")
    return Program("nadam", ("m", "v"), _pick(*names))


def _ftrl(rule: FtrlRule) -> Program:
    def scalars(c: Scalars) -> list[float]:
        return [c["scale"], c["per_power"], -c["power"], c["l1"], c["l2"], 2.0 * c["shrinkage"]]

    return Program("ftrl", ("accumulator", "linear"), scalars)


PROGRAMS: Mapping[type, Callable[[Any], Program]] = {
    SGDRule: _sgd,
    AdamRule: _adam,
    AdadeltaRule: _adadelta,
    AdagradRule: _adagrad,
    RMSpropRule: _rmsprop,
    LionRule: _lion,
    AdamaxRule: _adamax,
    NadamRule: _nadam,
    FtrlRule: _ftrl,
}


def program_for(rule: Rule | None) -> Program | None:
    """None if the kernel does not have the rule."""
    make = PROGRAMS.get(type(rule))
    return None if make is None else make(rule)
