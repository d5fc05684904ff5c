"""The optimizers that can be measured: arguments, rule, and least traffic of a step.

`-o` takes a name with arguments: `adam`, `adam:amsgrad=true`, `sgd:momentum=0.9:nesterov=true`. The arguments of every
optimizer are those below; each peer is given all of them, the defaults included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from bench.errors import OptionError, UnknownNameError
from optim.rule import Rule
from optim.rules.adadelta import AdadeltaRule
from optim.rules.adafactor import AdafactorRule
from optim.rules.adagrad import AdagradRule
from optim.rules.adam import AdamRule
from optim.rules.adamax import AdamaxRule
from optim.rules.ftrl import FtrlRule
from optim.rules.lamb import LambRule
from optim.rules.lion import LionRule
from optim.rules.muon import MuonRule
from optim.rules.nadam import NadamRule
from optim.rules.rmsprop import RMSpropRule
from optim.rules.sgd import SGDRule

Arguments = Mapping[str, Any]

TOLERANCE = 2e-4
"""float32 arithmetic stays below it (1 - 0.999**t in float32 alone is off by up to 5e-5); a wrong formula
does not."""

MUON_TOLERANCE = 5e-3
"""Five Newton-Schulz iterations enlarge small singular values, and float32's errors in them, by up to 3.4445**5 = 485;
one iteration more or less moves the result by over a tenth."""

WHOLE = 2**24
"""Elements of the largest tensor that the reference computes whole."""


@dataclass(frozen=True)
class Algorithm:
    """One optimizer with its arguments.

    Attributes:
      name: as `-o` takes it; class_name: the class in Keras and in `optim`.
      hyperparameters: all arguments by name: floats and flags.
      make_rule: arguments -> the rule of `optim` that is the reference, in float64.
      further_reads: arrays of the parameter's shape that a step must read again, in a second or third pass.
      weight_decay: what is used where `--weight-decay` is not given, or None.
      tolerance: of the agreement in float32; largest_checked: elements of the largest tensor that is checked where
        the rule needs tensors whole.
      jumps: whether the step jumps with the sign of a number that rounding can turn around.
      text: what `-o` was given.
    """

    name: str
    class_name: str
    hyperparameters: Arguments
    make_rule: Callable[[Arguments], Rule]
    further_reads: int = 0
    weight_decay: float | None = None
    tolerance: float = TOLERANCE
    largest_checked: int = WHOLE
    jumps: bool = False
    text: str = ""

    @property
    def rule(self) -> Rule:
        return self.make_rule(self.hyperparameters)


def _sgd(a: Arguments) -> Rule:
    return SGDRule(keeps_momentum=a["momentum"] != 0.0, nesterov=a["nesterov"])


def _rmsprop(a: Arguments) -> Rule:
    return RMSpropRule(keeps_momentum=a["momentum"] != 0.0, centered=a["centered"], epsilon_inside=a["epsilon_inside"])


_MOMENTS = {"learning_rate": 1e-3, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
_FTRL = {
    "learning_rate": 1e-2,
    "learning_rate_power": -0.5,
    "initial_accumulator_value": 0.1,
    "l1_regularization_strength": 0.0,
    "l2_regularization_strength": 0.0,
    "l2_shrinkage_regularization_strength": 0.0,
    "beta": 0.0,
}
_ADAFACTOR = {"learning_rate": 1e-2, "beta_2_decay": -0.8, "epsilon_1": 1e-30, "epsilon_2": 1e-3, "clip_threshold": 1.0}
_MUON = {
    "learning_rate": 1e-3,
    "adam_beta_1": 0.9,
    "adam_beta_2": 0.999,
    "epsilon": 1e-7,
    "muon_a": 3.4445,
    "muon_b": -4.7750,
    "muon_c": 2.0315,
    "adam_lr_ratio": 1.0,
    "momentum": 0.95,
    "nesterov": True,
}

ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm("adam", "Adam", {**_MOMENTS, "amsgrad": False}, lambda a: AdamRule(a["amsgrad"])),
    Algorithm("adamw", "AdamW", {**_MOMENTS, "amsgrad": False}, lambda a: AdamRule(a["amsgrad"]), weight_decay=0.004),
    Algorithm("sgd", "SGD", {"learning_rate": 1e-2, "momentum": 0.0, "nesterov": False}, _sgd),
    Algorithm(
        "rmsprop",
        "RMSprop",
        {
            "learning_rate": 1e-3,
            "rho": 0.9,
            "momentum": 0.0,
            "epsilon": 1e-7,
            "centered": False,
            "epsilon_inside": True,
        },
        _rmsprop,
    ),
    Algorithm(
        "adagrad",
        "Adagrad",
        {"learning_rate": 1e-2, "initial_accumulator_value": 0.1, "epsilon": 1e-7, "epsilon_inside": True},
        lambda a: AdagradRule(a["epsilon_inside"], a["initial_accumulator_value"]),
    ),
    Algorithm("adadelta", "Adadelta", {"learning_rate": 1.0, "rho": 0.95, "epsilon": 1e-7}, lambda a: AdadeltaRule()),
    Algorithm("adamax", "Adamax", dict(_MOMENTS), lambda a: AdamaxRule()),
    Algorithm("nadam", "Nadam", {**_MOMENTS, "schedule_decay": 1.0}, lambda a: NadamRule()),
    Algorithm("ftrl", "Ftrl", _FTRL, lambda a: FtrlRule(a["initial_accumulator_value"])),
    Algorithm("lion", "Lion", {"learning_rate": 1e-4, "beta_1": 0.9, "beta_2": 0.99}, lambda a: LionRule(), jumps=True),
    # Adafactor: means of g², the size of p, and the size of the step before the step: g twice and p once again.
    Algorithm("adafactor", "Adafactor", _ADAFACTOR, lambda a: AdafactorRule(), further_reads=3),
    # LAMB: m and v are read once more, with p, to scale the step to its own norm.
    Algorithm("lamb", "Lamb", {**_MOMENTS, "learning_rate": 1e-2}, lambda a: LambRule(), further_reads=3),
    Algorithm(
        "muon",
        "Muon",
        _MUON,
        lambda a: MuonRule(nesterov=a["nesterov"]),
        weight_decay=0.004,
        tolerance=MUON_TOLERANCE,
        largest_checked=2**22,
    ),
)

ALIASES = {"momentum": "sgd:momentum=0.9"}


def algorithm(text: str) -> Algorithm:
    """The optimizer that `-o` names, with its arguments. Raises: UnknownNameError, OptionError."""
    name, *pairs = ALIASES.get(text, text).split(":")
    found = next((known for known in ALGORITHMS if known.name == name), None)
    if found is None:
        names = ", ".join(known.name for known in ALGORITHMS)
        raise UnknownNameError(f"no optimizer is called {name!r} in the benchmarks; there are: {names}")
    given = dict(_argument(found, pair) for pair in pairs)
    words = [f"{key}={shown(given[key])}" for key in found.hyperparameters if key in given]
    return replace(found, hyperparameters={**found.hyperparameters, **given}, text=":".join([name, *words]))


def _argument(found: Algorithm, pair: str) -> tuple[str, Any]:
    name, equals, value = pair.partition("=")
    if name not in found.hyperparameters or not equals:
        names = ", ".join(found.hyperparameters)
        raise OptionError(f"{found.name} takes no {pair!r}; write {found.name}:ARGUMENT=VALUE with one of: {names}")
    if isinstance(found.hyperparameters[name], bool):
        if value.lower() in ("true", "false"):
            return name, value.lower() == "true"
        raise OptionError(f"{found.name}: {name} is true or false, not {value!r}")
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        raise OptionError(f"{found.name}: {name} is a number, not {value!r}")
    return name, number


def shown(value: Any) -> str:
    """An argument's value as `-o` takes it."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"
