"""The rules that Keras had before OptimizerV2, as the ops that a graph has of them: one expression for each variable.

Sources: `keras/optimizers.py` 1.0.0 - 2.3.1, `tensorflow/python/keras/optimizers.py` 1.4 - 1.15.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from migrate.graphs.nodes import Nodes
from migrate.graphs.patterns import ADD, DIVIDE, Anything, Cast, Either, Found, Named, Pattern, Variable, match

_SLOT, _GRADIENT, _BASE, _LEFT = "slot ", "gradient ", "0.96", "1 - "
_RATES, _PRODUCT = ("learning_rate", "lr"), "m_schedule"


@dataclass(frozen=True)
class Rule:
    """What moves one variable: a class, what its config has of it, and all that it takes for the gradient."""

    class_name: str
    config: Mapping[str, Any]
    gradients: tuple[str, ...]
    is_constrained: bool


def of_variable(nodes: Nodes, settings: Mapping[str, str], name: str, assigned: Mapping[str, str]) -> Rule | None:
    """The rule that a variable moves by, None where it is none of Keras's, op for op; a constraint may be behind it.

    Args:
      settings: the optimizer's scalar variables by the name of the setting.
      assigned: what each variable becomes in a step.
    """
    for each in _formulas(_Settings(settings), Variable(name)):
        found = Found()
        if not match(nodes, assigned[name], Either(each.step, *constrained(Named("moved", each.step))), found):
            continue
        slots = {kind: found.nodes[_SLOT + kind] for kind in each.slots}
        values = {kind: assigned.get(slot, "") for kind, slot in slots.items()}
        if all(match(nodes, values[kind], new, found) for kind, new in each.slots.items()) and _is_sound(found):
            gradients = tuple(node for key, node in found.nodes.items() if key.startswith(_GRADIENT))
            told = {key: value for key, value in found.constants.items() if key != _BASE and not key.startswith(_LEFT)}
            is_bound = not match(nodes, assigned[name], each.step, Found())
            return Rule(each.class_name, {**told, **each.config}, gradients, is_bound)
    return None


def constrained(moved: Pattern) -> tuple[Pattern, ...]:
    """What Keras's constraints make of a variable that has moved (`constraints.py` 1.0 - 2.10): NonNeg, UnitNorm,
    MaxNorm and MinMaxNorm. Their numbers are those of the model."""
    any_number = Anything()
    norm = _root(("Sum", ("Square", moved), any_number))
    within = Either(
        ("Maximum", ("Minimum", norm, any_number), any_number), ("ClipByValue", norm, any_number, any_number)
    )
    partly = (ADD, ("Mul", any_number, within), ("Mul", any_number, norm))
    scaled = (DIVIDE, Either(within, partly), (ADD, any_number, norm))
    nonnegative = Cast(("GreaterEqual", moved, 0.0))
    return (
        ("Mul", moved, nonnegative),
        (DIVIDE, moved, (ADD, any_number, norm)),
        ("Mul", moved, scaled),
    )


def _is_sound(found: Found) -> bool:
    """Whether constants are what Keras computes: 0.96, and 1 - rho of a rho that is no variable."""
    base, rho, left = (found.constants.get(key) for key in (_BASE, "rho", f"{_LEFT}rho"))
    return base in (None, 0.96, float(np.float32(0.96))) and (
        rho is None or left is None or math.isclose(1 - rho, left, abs_tol=1e-7)
    )


class _Formula(NamedTuple):
    """`slots`: what each becomes, by its kind."""

    class_name: str
    step: Pattern
    slots: Mapping[str, Pattern]
    config: Mapping[str, Any] = {}


class _Settings:
    """Patterns of an optimizer's settings: variables, but for those that are numbers of Python."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def __getitem__(self, key: str) -> Pattern:
        return Variable(self._names[key]) if key in self._names else key

    def left(self, key: str) -> Pattern:
        """1 - setting."""
        return ("Sub", 1.0, self[key]) if key in self._names else _LEFT + key

    def counted(self) -> Pattern:
        steps = self["iterations"]
        return Either(steps, Cast(steps))

    def due(self) -> Pattern:
        """The number of the step: what is counted so far and 1; tf.keras reads the counter behind its addition."""
        return Either((ADD, self.counted(), 1.0), self.counted())

    def plain_rate(self) -> Pattern:
        return self[next((key for key in _RATES if key in self._names), _RATES[0])]

    def rate(self) -> Pattern:
        """The learning rate, with its decay where there is one."""
        rate = self.plain_rate()
        return Either(rate, ("Mul", rate, (DIVIDE, 1.0, (ADD, 1.0, ("Mul", self["decay"], self.counted())))))

    def mean(self, kind: str, key: str, value: Pattern) -> Pattern:
        """What a slot becomes."""
        return Named(kind, (ADD, ("Mul", self[key], _slot(kind)), ("Mul", self.left(key), value)))

    def unbiased(self, key: str) -> Pattern:
        return ("Sub", 1.0, ("Pow", self[key], self.due()))


def _slot(kind: str) -> Pattern:
    return Anything(_SLOT + kind)


def _gradient(place: str) -> Pattern:
    """Rows of a table are added up anew at each place that takes them."""
    return Anything(_GRADIENT + place)


def _root(of: Pattern) -> Pattern:
    """`K.sqrt` clips first, in TF 1.8 with an op of its own."""
    return ("Sqrt", Either(("Maximum", ("Minimum", of, math.inf), 0.0), ("ClipByValue", of, 0.0, math.inf)))


def _formulas(of: _Settings, variable: Variable) -> Iterator[_Formula]:
    mean, rate, squared = of.mean, of.rate(), ("Square", _gradient("squared"))
    yield from _momentum(of, variable)
    for class_name, square in (
        ("RMSprop", mean("accumulator", "rho", squared)),
        ("Adagrad", Named("accumulator", (ADD, _slot("accumulator"), squared))),
    ):
        step = ("Sub", variable, (DIVIDE, ("Mul", rate, _gradient("moved")), (ADD, _root(square), "epsilon")))
        yield _Formula(class_name, step, {"accumulator": square})
    m, v = mean("m", "beta_1", _gradient("mean")), mean("v", "beta_2", squared)
    one, two = of.unbiased("beta_1"), _root(of.unbiased("beta_2"))
    # before Keras 1.1 the rate is multiplied by the root first
    taken = Either(("Mul", rate, (DIVIDE, two, one)), (DIVIDE, ("Mul", rate, two), one))
    largest = Named("vhat", ("Maximum", _slot("vhat"), v))
    for spread, more in ((v, {}), (largest, {"vhat": largest})):
        step = ("Sub", variable, (DIVIDE, ("Mul", taken, m), (ADD, _root(spread), "epsilon")))
        yield _Formula("Adam", step, {"m": m, "v": v, **more}, {"amsgrad": bool(more)})
    u = Named("u", ("Maximum", ("Mul", of["beta_2"], _slot("u")), ("Abs", _gradient("squared"))))
    step = ("Sub", variable, (DIVIDE, ("Mul", (DIVIDE, rate, one), m), (ADD, u, "epsilon")))
    yield _Formula("Adamax", step, {"m": m, "u": u})
    yield _adadelta(of, variable, mean("accumulator", "rho", squared))
    yield _nadam(of, variable, m, v)


def _momentum(of: _Settings, variable: Variable) -> Iterator[_Formula]:
    kept, moved = (("Mul", of.rate(), _gradient(place)) for place in ("kept", "moved"))
    momentum = of["momentum"]
    moment = Named("moment", ("Sub", ("Mul", momentum, _slot("moment")), kept))
    yield _Formula("SGD", (ADD, variable, moment), {"moment": moment}, {"nesterov": False})
    ahead = ("Sub", (ADD, variable, ("Mul", momentum, moment)), moved)
    yield _Formula("SGD", ahead, {"moment": moment}, {"nesterov": True})


def _adadelta(of: _Settings, variable: Variable, square: Pattern) -> _Formula:
    """It takes its own step for a gradient, too."""
    moved, spread = (_root((ADD, each, "epsilon")) for each in (_slot("delta_accumulator"), square))
    delta = Named("delta", (DIVIDE, ("Mul", _gradient("moved"), moved), spread))
    deltas = of.mean("delta_accumulator", "rho", ("Square", delta))
    slots = {"accumulator": square, "delta_accumulator": deltas}
    return _Formula("Adadelta", ("Sub", variable, ("Mul", of.rate(), delta)), slots)


def _nadam(of: _Settings, variable: Variable, m: Pattern, v: Pattern) -> _Formula:
    due = of.due()
    now, later = (
        ("Mul", of["beta_1"], ("Sub", 1.0, ("Mul", 0.5, ("Pow", _BASE, ("Mul", step, "schedule_decay")))))
        for step in (due, (ADD, due, 1.0))
    )
    before = ("Mul", Named(_SLOT + _PRODUCT, of[_PRODUCT]), now)
    product = Named("product", before)
    gradient = (DIVIDE, _gradient("moved"), ("Sub", 1.0, product))
    mean = (DIVIDE, m, ("Sub", 1.0, ("Mul", before, later)))
    blended = (ADD, ("Mul", ("Sub", 1.0, now), gradient), ("Mul", later, mean))
    spread = _root((DIVIDE, v, of.unbiased("beta_2")))
    step = ("Sub", variable, (DIVIDE, ("Mul", of.plain_rate(), blended), (ADD, spread, "epsilon")))
    return _Formula("Nadam", step, {"m": m, "v": v, _PRODUCT: product})
