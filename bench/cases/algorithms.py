"""The optimizers that can be measured: arguments, rule, and least traffic of a step.

`-o` takes a name with arguments: `adam`, `adam:amsgrad=true`, `sgd:momentum=0.9:nesterov=true`. The arguments of every
optimizer are those below. Each peer gets all of them, including the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from typing import Any

from bench.cases.workloads import Tensor
from bench.errors import OptionError, UnknownNameError
from optim.arguments import Choice
from optim.rule import Rule
from optim.rule import arguments as arguments_of
from optim.rules.adabelief import AdaBeliefRule
from optim.rules.adadelta import AdadeltaRule
from optim.rules.adafactor import AdafactorRule
from optim.rules.adagrad import AdagradRule
from optim.rules.adam import AdamRule
from optim.rules.adamax import AdamaxRule
from optim.rules.adan import AdanRule
from optim.rules.cocob import COCOBRule
from optim.rules.conditional_gradient import ConditionalGradientRule
from optim.rules.ftrl import FtrlRule
from optim.rules.lamb import LambRule
from optim.rules.lars import LARSRule
from optim.rules.lion import LionRule
from optim.rules.muon import MuonRule
from optim.rules.nadam import NadamRule
from optim.rules.novograd import NovoGradRule
from optim.rules.proximal_adagrad import ProximalAdagradRule
from optim.rules.rectified_adam import RectifiedAdamRule
from optim.rules.rmsprop import RMSpropRule
from optim.rules.schedule_free_adamw import ScheduleFreeAdamWRule
from optim.rules.sgd import SGDRule
from optim.rules.yogi import YogiRule

Arguments = Mapping[str, Any]

TOLERANCE = 2e-4
"""Tolerance. The error of float32 arithmetic is below it (1 - 0.999**t in float32 alone is off by up to 5e-5); that of
a wrong formula is above.
"""

MUON_TOLERANCE = 5e-3
"""Tolerance of Muon. Five Newton-Schulz iterations enlarge small singular values, and float32's errors in them, by up
to 3.4445**5 = 485. One iteration more or less moves the result by over a tenth.
"""

WHOLE = 2**24
"""Elements of the largest tensor that the reference computes whole."""


@dataclass(frozen=True)
class Algorithm:
    """One optimizer with its arguments.

    Attributes:
      name: as `-o` takes it; class_name: the class in Keras and in `optim`.
      kind: the rule of `optim`, which is the reference, in float64; its defaults are the arguments'.
      arguments: names of the arguments that users can set, numbers and flags.
      settings: values other than the rule's defaults.
      further_reads: arrays of the parameter's shape that a step must read again, in a second or third pass.
      weight_decay: value without `--weight-decay`, or None.
      tolerance: of the agreement in float32; largest_checked: elements of the largest tensor that is checked if the
        rule needs whole tensors.
      jumps: whether the step jumps with the sign of a number that rounding can change.
      text: the value of `-o`.
    """

    name: str
    class_name: str
    kind: type[Rule]
    arguments: tuple[str, ...]
    settings: Arguments = field(default_factory=dict)
    further_reads: int = 0
    weight_decay: float | None = None
    tolerance: float = TOLERANCE
    largest_checked: int = WHOLE
    jumps: bool = False
    text: str = ""

    @cached_property
    def hyperparameters(self) -> Arguments:
        """All arguments by name: floats and flags."""
        declared = arguments_of(self.kind)
        return {name: self.settings.get(name, declared[name].default) for name in self.arguments}

    @cached_property
    def rule(self) -> Rule:
        declared, chosen = arguments_of(self.kind), self.hyperparameters
        choices = {name: chosen.get(name, a.default) for name, a in declared.items() if isinstance(a, Choice)}
        return self.kind.from_arguments(choices, chosen)

    def slots_of(self, tensor: Tensor) -> dict[str, tuple[int, ...]]:
        """Return the slots of a tensor by name: which dims of the tensor each has."""
        slot_dims = {slot.name: self.rule.slot_dims(slot, tensor.shape, [tensor.name]) for slot in self.rule.slots}
        return {name: dims for name, dims in slot_dims.items() if dims is not None}


_MOMENTS = ("learning_rate", "beta_1", "beta_2", "epsilon")
_RECTIFIED = ("amsgrad", "sma_threshold", "total_steps", "warmup_proportion", "min_lr")
_FTRL = (
    "learning_rate",
    "learning_rate_power",
    "initial_accumulator_value",
    "l1_regularization_strength",
    "l2_regularization_strength",
    "l2_shrinkage_regularization_strength",
    "beta",
)
_ADAFACTOR = ("learning_rate", "beta_2_decay", "epsilon_1", "epsilon_2", "clip_threshold")
_MUON = (
    "learning_rate",
    "adam_beta_1",
    "adam_beta_2",
    "epsilon",
    "muon_a",
    "muon_b",
    "muon_c",
    "adam_lr_ratio",
    "momentum",
    "nesterov",
)
_RMSPROP = ("learning_rate", "rho", "momentum", "epsilon", "centered", "epsilon_inside")
_ADAGRAD = ("learning_rate", "initial_accumulator_value", "epsilon", "epsilon_inside")
_PROXIMAL = ("learning_rate", "initial_accumulator_value", "l1_regularization_strength", "l2_regularization_strength")
_LARS = ("learning_rate", "momentum", "trust_coefficient", "epsilon", "nesterov")
_ADAN = ("learning_rate", "beta_1", "beta_2", "beta_3", "epsilon")

ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm("adam", "Adam", AdamRule, (*_MOMENTS, "amsgrad")),
    Algorithm("adamw", "AdamW", AdamRule, (*_MOMENTS, "amsgrad"), weight_decay=0.004),
    Algorithm("sgd", "SGD", SGDRule, ("learning_rate", "momentum", "nesterov")),
    Algorithm("rmsprop", "RMSprop", RMSpropRule, _RMSPROP),
    Algorithm("adagrad", "Adagrad", AdagradRule, _ADAGRAD, {"learning_rate": 1e-2}),
    Algorithm("adadelta", "Adadelta", AdadeltaRule, ("learning_rate", "rho", "epsilon"), {"learning_rate": 1.0}),
    Algorithm("adamax", "Adamax", AdamaxRule, _MOMENTS),
    Algorithm("nadam", "Nadam", NadamRule, (*_MOMENTS, "schedule_decay")),
    Algorithm("ftrl", "Ftrl", FtrlRule, _FTRL, {"learning_rate": 1e-2}),
    Algorithm("lion", "Lion", LionRule, ("learning_rate", "beta_1", "beta_2"), {"learning_rate": 1e-4}, jumps=True),
    # Adafactor: means of g², the size of p, and the size of the step before the step: g twice and p once again.
    Algorithm("adafactor", "Adafactor", AdafactorRule, _ADAFACTOR, {"learning_rate": 1e-2}, further_reads=3),
    # LAMB: m and v are read once more, with p, to scale the step to its own norm.
    Algorithm("lamb", "Lamb", LambRule, _MOMENTS, {"learning_rate": 1e-2}, further_reads=3),
    Algorithm("muon", "Muon", MuonRule, _MUON, weight_decay=0.004, tolerance=MUON_TOLERANCE, largest_checked=2**22),
    Algorithm("radam", "RectifiedAdam", RectifiedAdamRule, (*_MOMENTS, *_RECTIFIED, "epsilon_hat")),
    Algorithm("adabelief", "AdaBelief", AdaBeliefRule, (*_MOMENTS, "rectify", *_RECTIFIED)),
    # The second moment moves by the sign of its distance from g².
    Algorithm("yogi", "Yogi", YogiRule, (*_MOMENTS, "initial_accumulator_value"), jumps=True),
    Algorithm("proximal-adagrad", "ProximalAdagrad", ProximalAdagradRule, _PROXIMAL, {"learning_rate": 1e-2}),
    Algorithm("cocob", "COCOB", COCOBRule, ("learning_rate", "alpha")),
    # Conditional gradient: the norm of g comes before the step.
    Algorithm(
        "conditional-gradient",
        "ConditionalGradient",
        ConditionalGradientRule,
        ("learning_rate", "lambda_", "epsilon"),
        {"learning_rate": 0.99},
        further_reads=1,
    ),
    # NovoGrad: the norm of g comes before the step.
    Algorithm("novograd", "NovoGrad", NovoGradRule, (*_MOMENTS, "grad_averaging", "amsgrad"), further_reads=1),
    # LARS: the norms of p and g come before the step.
    Algorithm("lars", "LARS", LARSRule, _LARS, further_reads=2),
    Algorithm("adan", "Adan", AdanRule, _ADAN),
    Algorithm(
        "schedule-free-adamw",
        "ScheduleFreeAdamW",
        ScheduleFreeAdamWRule,
        (*_MOMENTS, "warmup_steps", "r", "weight_lr_power"),
    ),
)

ALIASES = {"momentum": "sgd:momentum=0.9"}


def algorithm(text: str) -> Algorithm:
    """Return the optimizer that `-o` names, with its arguments. Raises: UnknownNameError, OptionError."""
    name, *pairs = ALIASES.get(text, text).split(":")
    algorithm_ = next((known for known in ALGORITHMS if known.name == name), None)
    if algorithm_ is None:
        names = ", ".join(known.name for known in ALGORITHMS)
        raise UnknownNameError(f"no optimizer is called {name!r} in the benchmarks; there are: {names}")
    settings = dict(_argument(algorithm_, pair) for pair in pairs)
    words = [f"{key}={shown(settings[key])}" for key in algorithm_.hyperparameters if key in settings]
    return replace(algorithm_, settings={**algorithm_.settings, **settings}, text=":".join([name, *words]))


def _argument(algorithm: Algorithm, pair: str) -> tuple[str, Any]:
    name, equals, value = pair.partition("=")
    if name not in algorithm.hyperparameters or not equals:
        names = ", ".join(algorithm.hyperparameters)
        raise OptionError(
            f"{algorithm.name} takes no {pair!r}; write {algorithm.name}:ARGUMENT=VALUE with one of: {names}"
        )
    if isinstance(algorithm.hyperparameters[name], bool):
        if value.lower() in ("true", "false"):
            return name, value.lower() == "true"
        raise OptionError(f"{algorithm.name}: {name} is true or false, not {value!r}")
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        raise OptionError(f"{algorithm.name}: {name} is a number, not {value!r}")
    return name, number


def shown(value: Any) -> str:
    """Format an argument's value as `-o` takes it."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"
