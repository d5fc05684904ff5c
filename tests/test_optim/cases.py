"""One table of optimizers, arguments and references that drives every shared property.

A new optimizer adds a reference in tests/reference and its rows in `VARIANTS`; `test_every_optimizer_is_in_the_table`
fails until it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import optim
from tests.reference.adadelta import Adadelta
from tests.reference.adafactor import Adafactor
from tests.reference.adagrad import Adagrad
from tests.reference.adam import Adam
from tests.reference.adamax import Adamax
from tests.reference.adan import Adan
from tests.reference.cocob import COCOB
from tests.reference.common import Algorithm, Options, Training
from tests.reference.conditional_gradient import ConditionalGradient
from tests.reference.ftrl import Ftrl
from tests.reference.lamb import Lamb
from tests.reference.layerwise import LARS, NovoGrad
from tests.reference.lion import Lion
from tests.reference.muon import Muon
from tests.reference.nadam import Nadam
from tests.reference.proximal_adagrad import ProximalAdagrad
from tests.reference.rectified_adam import AdaBelief, RectifiedAdam
from tests.reference.rmsprop import RMSprop
from tests.reference.schedule_free_adamw import ScheduleFreeAdamW
from tests.reference.sgd import SGD
from tests.reference.shampoo import Shampoo
from tests.reference.soap import SOAP
from tests.reference.yogi import Yogi
from tests.test_optim.values import MODES

RATE = 0.05
WHOLE = ("Adafactor", "ConditionalGradient", "Lamb", "LARS", "Muon", "NovoGrad", "Shampoo", "SOAP")
"""Optimizers whose rules look at whole variables: eager steps are portable, too."""
SUMS = ("Adafactor", "ConditionalGradient", "Lamb", "LARS", "NovoGrad")
"""Those of them that the kernel has: all that they need are sums."""


@dataclass(frozen=True)
class Case:
    """`arguments` make the optimizer; `algorithm`, `rate` and `loop` make its reference."""

    name: str
    optimizer: str
    arguments: Mapping[str, Any]
    algorithm: Algorithm
    loop: Options = field(default_factory=Options)
    rate: Callable[[int], float] = lambda _: RATE

    def __str__(self) -> str:
        return self.name

    @property
    def _looks_at_wholes(self) -> bool:
        """Whether its options do."""
        return bool(self.arguments.get("cautious") or self.arguments.get("adaptive_grad_clip"))

    @property
    def has_sums(self) -> bool:
        """Whether its rule needs whole variables for nothing but sums."""
        is_sums = self.optimizer in SUMS if self.optimizer in WHOLE else self._looks_at_wholes
        return is_sums and self.arguments.get("ord") != "nuclear"

    @property
    def modes(self) -> tuple[str, ...]:
        """The ways to run a step."""
        is_whole = self.optimizer in WHOLE or self._looks_at_wholes
        none = {"local", "native", "native_function"} if is_whole else set()
        if self.has_sums:
            none.discard("native_function")
        return tuple(mode for mode in MODES if mode not in none)

    def make(self, **more: Any) -> Any:
        arguments = {"learning_rate": RATE, **self.arguments, **more}
        if callable(arguments["learning_rate"]):
            arguments["learning_rate"] = arguments["learning_rate"]()
        return getattr(optim, self.optimizer)(**arguments)

    def reference(self, values: Mapping[str, Any]) -> Training:
        return Training(self.algorithm, self.rate, dict(values), self.loop)


def _variant(name: str, optimizer: str, algorithm: type, **hyper: Any) -> Case:
    return Case(name, optimizer, hyper, algorithm(**hyper))


_FTRL = {
    "learning_rate_power": -0.6,
    "initial_accumulator_value": 0.3,
    "l1_regularization_strength": 0.1,
    "l2_regularization_strength": 0.2,
    "l2_shrinkage_regularization_strength": 0.05,
    "beta": 0.4,
}
_WARM = {"total_steps": 6, "warmup_proportion": 0.3, "min_lr": 1e-3}
_MUON = {"adam_beta_1": 0.8, "adam_lr_ratio": 0.5, "momentum": 0.7, "ns_steps": 3, "nesterov": False, "rms_rate": None}

VARIANTS = (
    _variant("sgd", "SGD", SGD),
    _variant("sgd-momentum", "SGD", SGD, momentum=0.9),
    _variant("sgd-nesterov", "SGD", SGD, momentum=0.8, nesterov=True),
    _variant("adam", "Adam", Adam),
    _variant("adam-nesterov", "Adam", Adam, epsilon=1e-3, beta_1=0.7, nesterov=True),
    _variant("adam-uncorrected", "Adam", Adam, epsilon=1e-3, bias_correction=False),
    _variant("adam-amsgrad", "Adam", Adam, beta_1=0.8, beta_2=0.7, epsilon=1e-3, amsgrad=True),
    _variant("adadelta", "Adadelta", Adadelta, rho=0.9, epsilon=1e-5),
    _variant("sgd-train", "SGD", SGD, momentum=0.9, learning_rate_in_momentum=False),
    _variant("sgd-train-nesterov", "SGD", SGD, momentum=0.8, nesterov=True, learning_rate_in_momentum=False),
    _variant("adadelta-train", "Adadelta", Adadelta, epsilon=1e-4, new_delta_in_step=True),
    _variant("rmsprop", "RMSprop", RMSprop),
    _variant("rmsprop-momentum", "RMSprop", RMSprop, rho=0.8, momentum=0.6, epsilon=1e-4),
    _variant("rmsprop-centered", "RMSprop", RMSprop, momentum=0.6, epsilon=1e-3, centered=True),
    _variant("rmsprop-v2", "RMSprop", RMSprop, epsilon=1e-2, centered=True, epsilon_inside=False),
    _variant("rmsprop-2.9", "RMSprop", RMSprop, momentum=0.5, epsilon_inside=False, learning_rate_in_momentum=False),
    _variant("rmsprop-train", "RMSprop", RMSprop, epsilon=1e-10, momentum_slot=True, initial_velocity=1.0),
    _variant("adagrad", "Adagrad", Adagrad, epsilon=1e-3),
    _variant("adagrad-v2", "Adagrad", Adagrad, epsilon=1e-2, epsilon_inside=False, initial_accumulator_value=0.0),
    _variant("adamax", "Adamax", Adamax, beta_2=0.9, epsilon=1e-3),
    _variant("nadam", "Nadam", Nadam),
    _variant("nadam-v2", "Nadam", Nadam, beta_1=0.8, epsilon=1e-3, schedule_decay=0.004),
    _variant("ftrl", "Ftrl", Ftrl),
    _variant("ftrl-all", "Ftrl", Ftrl, **_FTRL),
    _variant("ftrl-2.4", "Ftrl", Ftrl, **_FTRL, learning_rate_in_linear=True),
    Case("adamw", "AdamW", {}, Adam(), Options(weight_decay=0.004)),
    Case(
        "adamw-amsgrad", "AdamW", {"weight_decay": 0.3, "amsgrad": True}, Adam(amsgrad=True), Options(weight_decay=0.3)
    ),
    _variant("lion", "Lion", Lion, beta_1=0.8),
    _variant("adafactor", "Adafactor", Adafactor),
    _variant(
        "adafactor-all",
        "Adafactor",
        Adafactor,
        beta_2_decay=-0.6,
        epsilon_1=1e-4,
        epsilon_2=0.5,
        clip_threshold=0.7,
        relative_step=False,
        learning_rate_cap=False,
    ),
    _variant("lamb", "Lamb", Lamb, epsilon=1e-3),
    _variant("lamb-decay", "Lamb", Lamb, epsilon=1e-3, weight_decay=0.3, decay_in_step=True),
    _variant("rectified-adam", "RectifiedAdam", RectifiedAdam, beta_2=0.95),
    _variant("rectified-adam-warm", "RectifiedAdam", RectifiedAdam, beta_2=0.9, epsilon=1e-3, amsgrad=True, **_WARM),
    _variant("rectified-adam-torch", "RectifiedAdam", RectifiedAdam, beta_2=0.9, epsilon=1e-3, epsilon_hat=True),
    _variant("adabelief", "AdaBelief", AdaBelief, beta_2=0.9, epsilon=1e-6, amsgrad=True, **_WARM),
    _variant("adabelief-plain", "AdaBelief", AdaBelief, epsilon=1e-6, rectify=False),
    _variant("yogi", "Yogi", Yogi),
    _variant(
        "yogi-all",
        "Yogi",
        Yogi,
        beta_1=0.8,
        l1_regularization_strength=0.3,
        l2_regularization_strength=0.2,
        initial_accumulator_value=0.1,
        activation="tanh",
    ),
    _variant(
        "proximal-adagrad",
        "ProximalAdagrad",
        ProximalAdagrad,
        l1_regularization_strength=0.3,
        l2_regularization_strength=0.2,
    ),
    _variant("cocob", "COCOB", COCOB),
    _variant("cocob-alpha", "COCOB", COCOB, alpha=1.5),
    _variant("conditional-gradient", "ConditionalGradient", ConditionalGradient, lambda_=0.3, epsilon=1e-3),
    _variant("conditional-gradient-nuclear", "ConditionalGradient", ConditionalGradient, lambda_=0.3, ord="nuclear"),
    _variant("novograd", "NovoGrad", NovoGrad, epsilon=1e-3),
    _variant("novograd-all", "NovoGrad", NovoGrad, beta_2=0.5, grad_averaging=True, amsgrad=True, weight_decay=0.1),
    _variant("lars", "LARS", LARS, trust_coefficient=0.1),
    _variant("lars-all", "LARS", LARS, trust_coefficient=0.1, epsilon=0.2, nesterov=True, weight_decay=0.3),
    _variant("lars-sum", "LARS", LARS, trust_coefficient=0.1, norm_of_sum=True, weight_decay=0.3),
    _variant("adan", "Adan", Adan, epsilon=1e-3),
    _variant("schedule-free", "ScheduleFreeAdamW", ScheduleFreeAdamW, epsilon=1e-3),
    _variant(
        "schedule-free-all",
        "ScheduleFreeAdamW",
        ScheduleFreeAdamW,
        beta_1=0.8,
        beta_2=0.9,
        epsilon=1e-3,
        warmup_steps=3,
        r=0.5,
        weight_lr_power=2.0,
        weight_decay=0.1,
    ),
    _variant("schedule-free-late", "ScheduleFreeAdamW", ScheduleFreeAdamW, epsilon=1e-3, late_z=True),
    Case(
        "schedule-free-decay-before",
        "ScheduleFreeAdamW",
        {"epsilon": 1e-3, "warmup_steps": 3, "weight_decay": 0.1, "weight_decay_in_step": False},
        ScheduleFreeAdamW(epsilon=1e-3, warmup_steps=3),
        Options(weight_decay=0.1),
    ),
    _variant("shampoo", "Shampoo", Shampoo, epsilon=0.1, precondition_frequency=3),
    _variant(
        "shampoo-all",
        "Shampoo",
        Shampoo,
        beta_2=0.8,
        momentum=0.7,
        epsilon=0.5,
        precondition_frequency=1,
        max_preconditioner_dim=4,
        relative_epsilon=False,
    ),
    _variant("soap", "SOAP", SOAP, epsilon=1e-3, damping=0.1, precondition_frequency=2, first_iterations=3),
    _variant(
        "soap-all",
        "SOAP",
        SOAP,
        beta_1=0.8,
        beta_2=0.9,
        epsilon=0.1,
        shampoo_beta=0.7,
        damping=0.3,
        precondition_frequency=1,
        max_preconditioner_dim=5,
        precondition_1d=True,
        bias_correction=False,
        first_iterations=1,
    ),
    Case("muon", "Muon", {}, Muon(), Options(weight_decay=0.004)),
    Case(
        "muon-aspect",
        "Muon",
        {"rms_rate": None, "aspect_scale": True, "weight_decay": None, "adam_weight_decay": None},
        Muon(rms_rate=None, aspect_scale=True),
    ),
    Case(
        "muon-all",
        "Muon",
        {**_MUON, "weight_decay": None, "adam_weight_decay": None, "exclude_layers": ["^tab"]},
        Muon(**_MUON, excluded=((8, 3),)),
    ),
)


def _schedule() -> Any:
    from optim.schedules import ExponentialDecay

    return ExponentialDecay(0.1, decay_steps=3, decay_rate=0.5)


def _warm_up() -> Any:
    from optim.schedules import LinearWarmup

    return LinearWarmup(_schedule(), warmup_steps=2, initial_learning_rate=0.02)


def _with(variant: str, name: str, rate: Any = None, arguments: Any = None, **options: Any) -> Case:
    """A variant with options that the optimizer and the reference call alike, and `arguments` for the former only."""
    base = next(v for v in VARIANTS if v.name == variant)
    loop = Options(**options)
    own = {key: value for key, value in options.items() if key != "not_decayed"}
    return Case(
        f"{variant}+{name}",
        base.optimizer,
        {**base.arguments, **own, **(arguments or {})},
        base.algorithm,
        loop,
        rate or base.rate,
    )


_ALL = {
    "clipvalue": 0.5,
    "global_clipnorm": 2.0,
    "weight_decay": 0.1,
    "use_ema": True,
    "ema_momentum": 0.7,
    "ema_overwrite_frequency": 3,
    "gradient_accumulation_steps": 2,
    "decay": 0.25,
    "learning_rate_multipliers": {"^table$": 0.25, "^(bias|odd)$": 1.5},
    "loss_scale": "dynamic",
    "loss_scale_growth_steps": 2,
}

_AROUND = {
    **{key: value for key, value in _ALL.items() if not key.startswith(("use_ema", "ema_"))},
    "decoupled_weight_decay": False,
    "lookahead": {"sync_period": 2, "slow_step_size": 0.8},
    "stochastic_average": {"start_averaging": 0, "average_period": 2},
}

OPTIONS = (
    _with("adam", "clipvalue", clipvalue=0.3),
    _with("sgd-momentum", "clipnorm", clipnorm=0.7),
    _with("sgd-nesterov", "global_clipnorm", global_clipnorm=1.5),
    _with("adadelta", "value_then_norm", clipvalue=0.4, clipnorm=0.5),
    _with("sgd", "norm_then_value", clipvalue=0.2, global_clipnorm=1.5, clip_order="norm_first"),
    _with(
        "adam",
        "weight_decay",
        arguments={"weight_decay_exclude": ["^bias$", "scale"]},
        weight_decay=0.3,
        not_decayed=("bias", "scale"),
    ),
    _with("adam", "coupled", weight_decay=0.3, decoupled_weight_decay=False, clipnorm=1.0),
    _with("sgd-nesterov", "decay-without-rate", weight_decay=0.02, learning_rate_in_weight_decay=False),
    _with("adam", "lookahead", lookahead={"sync_period": 3, "slow_step_size": 0.4}),
    _with("sgd-momentum", "stochastic-average", stochastic_average={"start_averaging": 1, "average_period": 2}),
    _with("lamb", "around", **_AROUND),
    _with("schedule-free", "lookahead", lookahead={"sync_period": 2, "slow_step_size": 0.4}),
    _with("adam-amsgrad", "around", arguments={"master_copies": True}, **_AROUND),
    _with("adam", "cautious", cautious=True),
    _with("sgd-nesterov", "cautious", cautious=True, weight_decay=0.3, decoupled_weight_decay=False),
    _with("lamb", "cautious", cautious=True, clipnorm=1.0, lookahead={"sync_period": 2, "slow_step_size": 0.4}),
    _with("adam", "adaptive-clip", weight_decay=0.3, adaptive_grad_clip={"clipping": 0.3, "exclude": ["^odd$"]}),
    _with(
        "lamb",
        "adaptive-clip",
        adaptive_grad_clip={"clipping": 0.2, "eps": 0.5},
        weight_decay=0.3,
        decoupled_weight_decay=False,
        cautious=True,
        clipvalue=0.5,
    ),
    _with("sgd-momentum", "ema", use_ema=True, ema_momentum=0.6),
    _with("adam-amsgrad", "ema_overwrite", use_ema=True, ema_momentum=0.6, ema_overwrite_frequency=2),
    _with(
        "adam",
        "ema_first_step",
        use_ema=True,
        ema_momentum=0.6,
        ema_start="first_step",
        ema_overwrite_frequency=2,
    ),
    _with("adadelta", "accumulation", gradient_accumulation_steps=3),
    _with("sgd-momentum", "decay", decay=0.5),
    _with("adam", "schedule", rate=lambda i: 0.1 * 0.5 ** (i / 3), arguments={"learning_rate": lambda: _schedule()}),
    _with(
        "adam",
        "warm-up",
        rate=lambda i: 0.02 + 0.04 * i if i < 2 else 0.1 * 0.5 ** ((i - 2) / 3),
        arguments={"learning_rate": lambda: _warm_up()},
    ),
    _with("adadelta", "callable", arguments={"learning_rate": lambda: lambda: RATE}),
    _with(
        "adam", "multipliers", weight_decay=0.3, learning_rate_multipliers={"^kernel$": 0.1, "^b|^s": 3.0, "^odd$": 0.0}
    ),
    _with("ftrl-all", "multipliers", learning_rate_multipliers={"^kernel$": 0.1, "^(bias|scale)$": 3.0}),
    _with("sgd-momentum", "loss_scale", clipvalue=0.5, clipnorm=0.7, loss_scale=64.0),
    _with("adam-amsgrad", "loss_scale", global_clipnorm=1.5, loss_scale="dynamic", loss_scale_growth_steps=2),
    _with("nadam", "everything", arguments={"master_copies": True}, **_ALL),
    _with("adafactor", "everything", **_ALL),
    _with("lamb", "everything", **_ALL),
    _with("sgd-nesterov", "everything", **_ALL),
    _with("adam-amsgrad", "everything", **_ALL),
    _with("adadelta", "everything", **_ALL),
)

ROWS = VARIANTS + OPTIONS

FIRST = {case.optimizer: case for case in reversed(VARIANTS)}
"""One variant of each optimizer; the others differ in elementwise formulas only."""
FEW = ("SGD", "Adam", "Adafactor", "ScheduleFreeAdamW")
"""Without slots, with two, of whole variables, with a second point: what a place can do wrong, it does to these."""


def marked(rows: Iterable[tuple[Any, ...]], is_quick: Callable[..., bool]) -> list[Any]:
    """Parameters of a test: those that only broaden what the quick ones show are left to `make test-all`."""
    import pytest  # tools/gpu_check.py runs without it

    return [
        pytest.param(*row, marks=() if is_quick(*row) else pytest.mark.breadth, id="-".join(map(str, row)))
        for row in rows
    ]


def is_one_of_few(case: Case, *_: Any) -> bool:
    return FIRST[case.optimizer].name == case.name and case.optimizer in FEW
