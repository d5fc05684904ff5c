"""Express a meaning as a call of the target: its class, its arguments, and what it cannot express."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from migrate import algorithms
from migrate.algorithms.clipping import LIMITS
from migrate.code.meanings import OPAQUE, Meaning, Value
from migrate.generations import traits
from migrate.releases import modules
from migrate.rules.comparison import nearest_epsilon
from optim import rule
from optim.errors import HyperparameterError, UnsupportedError
from optim.rule import Rule
from optim.rules.lars import LARSRule

OPTIM, KERAS, TF_KERAS = "optim", "keras", "tf-keras"
TARGETS = (OPTIM, KERAS, TF_KERAS)
OPTIM_ONLY: dict[str, Any] = {
    "clip_order": "value_first",
    "decay": 0.0,
    "epsilon_inside": True,
    "initial_velocity": 0.0,
    "lazy_rows": (),
    "learning_rate_in_linear": False,
    "learning_rate_in_momentum": True,
    "new_delta_in_step": False,
    "schedule_decay": 1.0,
}
"""Arguments of `optim` that select rules of old releases, with the fixed behaviour of current Keras."""
KERAS_OPTIONS = (
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "weight_decay",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "name",
)
ONLY_KERAS_3 = ("gradient_accumulation_steps",)


LEAST_EPSILON = 1.2e-38
"""The smallest normal number of float32, rounded up."""
DECAY_PER_RATE = "learning_rate_in_weight_decay"


@dataclass
class Target:
    """A call: `module` and `name` of the class, `arguments` in the order of `Meaning`, `reasons` why it differs.

    `origin` as in `Meaning`. `notes` are remarks that change nothing. `makes_schedule`: the learning rate is a schedule
    that replaces `decay`, called through `module`.
    """

    module: str
    name: str
    arguments: dict[str, Value]
    origin: Mapping[str, str]
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    makes_schedule: bool = False

    def call(self, module: str = "") -> str:
        """Return its text. `module`: the name under which a program has the module."""
        arguments = ", ".join(f"{name}={value.text}" for name, value in self.arguments.items())
        return f"{module or self.module}.{self.name}({arguments})"


ADDONS = ("Lamb", "RectifiedAdam", "AdaBelief", "Yogi", "NovoGrad")
"""Algorithms that OptimizerV2 has only in TensorFlow Addons."""


def check(name: str) -> str:
    """Return the name. Raises HyperparameterError with the list unless it is one of TARGETS."""
    if name not in TARGETS:
        raise HyperparameterError(f"--to takes one of {', '.join(TARGETS)}; not {name!r}")
    return name


def render(meaning: Meaning, target: str, *, rate_is_set: bool, generation: str, by_name: bool = False) -> list[Target]:
    """Return the possible calls in the target, the preferred one first.

    Args:
      rate_is_set: whether the program changes the learning rate itself, which a schedule does not allow.
      generation: of the old call, which selects one of tf_keras's two families of classes.
      by_name: whether the class is a string in `compile`, which means the newer family.
    """
    if target == OPTIM:
        return [_optim(meaning)]
    if target == KERAS:
        return [_keras(meaning, modules.KERAS_3, rate_is_set)]
    new, legacy = _keras(meaning, modules.TF_KERAS, rate_is_set), _legacy_class(meaning)
    if legacy is None or by_name:
        return [new]
    return [new, legacy] if traits(generation).is_newer_than_v2 else [legacy, new]


OWN_RULES: dict[str, type[Rule]] = {"LARS": LARSRule}
"""Classes of `optim` without a source format."""


def _optim_defaults(name: str) -> dict[str, Any]:
    if name in OWN_RULES:
        return {"weight_decay": 0.0, **{k: a.default for k, a in rule.arguments(OWN_RULES[name]).items()}}
    algorithm = algorithms.find(name)
    newest = modules.GENERATION[modules.KERAS_3]
    if newest in algorithm.generations:
        return {**algorithm.defaults(newest), **OPTIM_ONLY}
    return {"weight_decay": 0.0, **algorithm.defaults(modules.ALONE[modules.ADDONS]), **OPTIM_ONLY}


def _optim(meaning: Meaning) -> Target:
    defaults = _optim_defaults(meaning.algorithm)
    target = Target("optim", meaning.algorithm, {}, meaning.origin)
    for key, value in meaning.arguments.items():
        if _has_effect(key, meaning.arguments) and _is_written(key, value, meaning, defaults):
            target.arguments[key] = value
    if {"clipnorm", "global_clipnorm"} <= set(target.arguments):
        raise UnsupportedError("clipnorm and global_clipnorm both act there, and optim accepts only one: leave one out")
    target.reasons += meaning.reasons
    target.notes += meaning.notes
    return target


def _keras(meaning: Meaning, family: str, rate_is_set: bool) -> Target:
    module, generation = modules.MODULE[family], modules.GENERATION[family]
    if meaning.algorithm in OWN_RULES or generation not in algorithms.find(meaning.algorithm).generations:
        optim_target = _optim(meaning)
        call = f"optim.{optim_target.name}({', '.join(f'{k}={v.text}' for k, v in optim_target.arguments.items())})"
        raise UnsupportedError(f"{module} has no {meaning.algorithm}; optim has: {call}")
    defaults = algorithms.find(meaning.algorithm).defaults(generation)
    target = Target(module, meaning.algorithm, {}, meaning.origin, list(meaning.reasons), list(meaning.notes))
    keywords = {*defaults, "epsilon", *KERAS_OPTIONS, *(ONLY_KERAS_3 if traits(generation).has_backends else ())}
    for key, value in meaning.arguments.items():
        if key in keywords and _is_written(key, value, meaning, defaults):
            target.arguments[key] = value
    target.reasons += [f"{key}={value.text} is not available there" for key, value in _inexpressible(meaning, keywords)]
    _divide_decay_by_rate(target, meaning)
    limits = [key for key in LIMITS if key in target.arguments]
    for key in limits[1:]:
        del target.arguments[key]
        target.reasons.append(
            f"{limits[0]} and {key} are both set, and the class there accepts only one: {key} is gone"
        )
    if _has_effect("decay", meaning.arguments) and "decay" in meaning.arguments:
        target.arguments["decay"] = meaning.arguments["decay"]
        _as_schedule(target, f"{module}.schedules", defaults)
        if rate_is_set:
            target.reasons.append(
                "the program sets the learning rate during decay, and a schedule cannot be set: leave one of"
                " them out; exact is optim's decay="
            )
    beyond = _unknown_to_keras(meaning)
    if beyond and _has_moved_epsilon(meaning.arguments, inside=True):
        target.arguments["epsilon"] = _moved_epsilon(meaning.arguments)
    target.reasons += beyond
    return target


def _has_moved_epsilon(values: Mapping[str, Value], *, inside: bool) -> bool:
    return (
        _has_effect("epsilon_inside", values)
        and "epsilon_inside" in values
        and values["epsilon_inside"].literal != inside
    )


def _moved_epsilon(values: Mapping[str, Value]) -> Value:
    """An epsilon that keeps the least denominator on the other side of the root; above 0 in float32, to avoid NaN."""
    epsilon, was_inside = values["epsilon"], bool(values["epsilon_inside"].literal)
    if isinstance(epsilon.literal, (int, float)):
        return Value.of(float(f"{max(nearest_epsilon(epsilon.literal, inside=was_inside), LEAST_EPSILON):.3g}"))
    return Value(f"({epsilon.text}) ** {0.5 if was_inside else 2}")


def _divide_decay_by_rate(target: Target, meaning: Meaning) -> None:
    if DECAY_PER_RATE not in meaning.arguments:
        return
    decay, rate = meaning.arguments["weight_decay"], meaning.arguments["learning_rate"]
    if not isinstance(rate.literal, (int, float)) or not rate.literal or "decay" in meaning.arguments:
        raise UnsupportedError(
            "its weight_decay did not follow the learning rate, and Keras's does: exact only for a constant rate,"
            f" weight_decay={decay.text} / (the learning rate)"
        )
    is_plain = decay.text.replace(".", "").replace("_", "").replace("-", "").isalnum()
    literal = decay.literal / rate.literal if isinstance(decay.literal, (int, float)) else OPAQUE
    target.arguments["weight_decay"] = Value(f"{decay.text if is_plain else f'({decay.text})'} / {rate.text}", literal)


def _inexpressible(meaning: Meaning, keywords: Collection[str]) -> list[tuple[str, Value]]:
    others = {
        k: v for k, v in meaning.arguments.items() if k not in keywords and (k not in OPTIM_ONLY or k == "lazy_rows")
    }
    return [(k, v) for k, v in others.items() if not v.known or v.literal not in (None, False, 0, [], ())]


def _unknown_to_keras(meaning: Meaning) -> list[str]:
    values, reasons = meaning.arguments, []
    optim_only = {
        k: v for k, v in values.items() if k in OPTIM_ONLY and v.literal != OPTIM_ONLY[k] and _has_effect(k, values)
    }
    if "epsilon_inside" in optim_only:
        near = f"epsilon={_moved_epsilon(values).text} keeps the least denominator"
        reasons.append(f"epsilon was outside of the root there and is inside now; {near}")
    if "learning_rate_in_momentum" in optim_only and not _is_constant(values.get("learning_rate")):
        reasons.append("momentum there did not include the learning rate, which is the same while the rate is constant")
    if "schedule_decay" in optim_only:
        reasons.append(f"its momentum followed schedule_decay={values['schedule_decay'].text}, and follows 1 now")
    if "initial_velocity" in optim_only:
        reasons.append("its mean of squares started at 1 and starts at 0 now")
    if "new_delta_in_step" in optim_only:
        reasons.append("its step already had the new mean of squared steps in it")
    return [*reasons[:-1], f"{reasons[-1]}; exact: {_optim(meaning).call()}"] if reasons else []


def _legacy_class(meaning: Meaning) -> Target | None:
    if meaning.algorithm in OWN_RULES or meaning.algorithm in ADDONS:
        return None
    algorithm, values = algorithms.find(meaning.algorithm), meaning.arguments
    generation = modules.GENERATION[modules.TF_KERAS_LEGACY]
    if generation not in algorithm.generations or "weight_decay" in values or "use_ema" in values:
        return None
    defaults = {**algorithm.defaults(generation), "decay": 0.0}
    if meaning.algorithm == "Nadam":
        defaults.pop("decay")
    target = Target(
        modules.MODULE[modules.TF_KERAS_LEGACY], meaning.algorithm, {}, meaning.origin, list(meaning.reasons)
    )
    target.notes += meaning.notes
    keywords = {*defaults, "epsilon", "clipnorm", "clipvalue", "global_clipnorm", "name"}
    for key, value in values.items():
        if key in keywords and _is_written(key, value, meaning, defaults):
            target.arguments[key] = value
    target.reasons += [f"{key}={value.text} is not available there" for key, value in _inexpressible(meaning, keywords)]
    target.reasons += _beyond_legacy(meaning)
    if _has_moved_epsilon(values, inside=_legacy_epsilon_inside(meaning)):
        target.arguments["epsilon"] = _moved_epsilon(values)
    return target


def _legacy_epsilon_inside(meaning: Meaning) -> bool:
    """Whether OptimizerV2 adds epsilon inside of the root: only in RMSprop with momentum."""
    momentum = meaning.arguments.get("momentum")
    return meaning.algorithm == "RMSprop" and momentum is not None and momentum.literal != 0


def _beyond_legacy(meaning: Meaning) -> list[str]:
    values, reasons = meaning.arguments, []
    if _has_moved_epsilon(values, inside=_legacy_epsilon_inside(meaning)):
        near = f"epsilon={_moved_epsilon(values).text} keeps the least denominator"
        reasons.append(f"epsilon is on the other side of the root there; {near}")
    if values.get("epsilon") is not None and values["epsilon"].literal == 0:
        reasons.append("epsilon=0 means 1e-7 there")
    if _has_effect("clip_order", values) and values.get("clip_order", Value("", "")).literal == "norm_first":
        reasons.append("the norm was clipped before the value, and is clipped after it now")
    rate_inside = values.get("learning_rate_in_momentum", Value.of(True)).literal
    acts = _has_effect("learning_rate_in_momentum", values) and not _is_constant(values.get("learning_rate"))
    if not rate_inside and acts:
        reasons.append("momentum did not include the learning rate: the same while the rate is constant")
    missing = [
        k for k in ("initial_velocity", "new_delta_in_step") if k in values and values[k].literal != OPTIM_ONLY[k]
    ]
    return [*reasons, *(f"{key}={values[key].text} is not available there" for key in missing)]


def _is_written(key: str, value: Value, meaning: Meaning, defaults: Mapping[str, Any]) -> bool:
    """Whether to write an argument: the program gives it, or the target's default differs."""
    if key == "name":
        return "name" in meaning.origin
    off = value.known and (value.literal in (None, [], ()) or (key in ("decay", *LIMITS) and not value.literal))
    if off and key not in ("epsilon", "epsilon_inside"):
        return False
    default = defaults.get(key, 1e-7 if key == "epsilon" else None)
    if key in meaning.origin and key not in ("epsilon_inside", "learning_rate_in_momentum"):
        return True
    return not value.known or value.literal != default


def _has_effect(key: str, values: Mapping[str, Value]) -> bool:

    def on(name: str) -> bool:
        return name in values and bool(values[name].literal)

    if key in ("learning_rate_in_momentum", "nesterov"):
        return on("momentum") or (key == "nesterov" and on("nesterov"))
    if key == "epsilon_inside":
        return on("epsilon")
    if key == "clip_order":
        return sum(on(limit) for limit in LIMITS) > 1
    if key == "decay":
        return on("decay")
    return True


def _as_schedule(target: Target, module: str, defaults: Mapping[str, Any]) -> None:
    """Write lr / (1 + decay * iterations) as InverseTimeDecay with decay_steps=1."""
    decay = target.arguments.pop("decay")
    rate = target.arguments.get("learning_rate") or Value.of(defaults["learning_rate"])
    text = f"{module}.InverseTimeDecay({rate.text}, decay_steps=1, decay_rate={decay.text})"
    target.arguments = {**target.arguments, "learning_rate": Value(text)}
    target.makes_schedule = True
    target.notes.append("decay is inverse time decay")


def _is_constant(rate: Value | None) -> bool:
    return rate is None or isinstance(rate.literal, (int, float))
