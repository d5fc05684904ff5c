"""Compare two optimizers' rules: every option of both, in `optim`'s terms, one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.algorithms import rates
from migrate.algorithms.clipping import LIMITS
from migrate.rules.step_factors import ELSEWHERE, NO_STEP
from migrate.state import OptimizerState
from optim import rules, schedules
from optim.errors import UnsupportedError
from optim.rule import arguments as declared

FAMILIES = ({"Adam", "AdamW"},)
"""Classes with one rule and the same slots, between which only the defaults differ."""
NOT_THE_RULE = NO_STEP | ELSEWHERE
"""Arguments that `compare` ignores: they do not affect a step, or custom functions compare them."""
APART = NOT_THE_RULE | {"gradient_accumulation_steps", "learning_rate", "decay"}
"""The same, with arguments that `compare` treats specially."""
RECTIFIED = ("RectifiedAdam", "AdaBelief")
"""Classes whose rectification amplifies the roundings of `float32_powers` to up to 1 % of a step."""
ON = ("decoupled_weight_decay", "learning_rate_in_weight_decay")
"""Options of every class that are on by default."""
MOMENTA = {"SGD": ("m", -1.0), "RMSprop": ("momentum", 1.0)}
"""Algorithm -> the slot that has the learning rate inside or outside, and its sign if it is inside."""
CLOSE = 1e-6
"""Relative tolerance: hyperparameters that a generation rounds to float32 are the same."""


@dataclass(frozen=True)
class Rule:
    """One optimizer's rule.

    Attributes:
      algorithm: name of the `optim` class.
      values: all its keyword arguments.
      unknown_rate: a text on the learning rate if it is neither a number nor a stock schedule; `values` then has no
        rate.
      reasons: why `values` may be wrong.
      rate: steps -> the learning rate of such a schedule of a live optimizer, if it can be called.
    """

    algorithm: str
    values: Mapping[str, Any]
    unknown_rate: str | None = None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    rate: Callable[[int], float] | None = None


def spelled_out(algorithm: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments with every default that is not off: those of the rule, and of `ON`.

    Raises:
      HyperparameterError: an argument that the rule refuses.
    """
    cls = rules.of(algorithm)
    if cls is None:
        raise UnsupportedError(f"dtopt does not know the rule of {algorithm}")
    parameters = declared(cls)
    values = {**defaults(algorithm), **arguments}
    for name, parameter in parameters.items():
        if not isinstance(values[name], Mapping):  # a schedule
            values[name] = parameter.check(name, values[name])
    values.pop("mesh", None)
    return values


def defaults(algorithm: str) -> dict[str, Any]:
    """Return the defaults that are not off: those of the rule, if it is known, and of `ON`."""
    cls = rules.of(algorithm)
    values = {} if cls is None else {name: parameter.default for name, parameter in declared(cls).items()}
    return {**dict.fromkeys(ON, True), **values}


def rule_of(algorithm: str, arguments: Mapping[str, Any]) -> Rule:
    """Return the rule of these keyword arguments. A custom schedule has a name and no values."""
    rate = arguments.get("learning_rate")
    if not isinstance(rate, Mapping) or not rates.is_own(rate):
        return Rule(algorithm, spelled_out(algorithm, arguments))
    values = spelled_out(algorithm, {**arguments, "learning_rate": 1.0})
    return Rule(algorithm, values, f"the schedule {rate['class_name']}")


def same_class(a: str, b: str) -> bool:
    """Return whether two classes have one rule and the same slots."""
    return a == b or any({a, b} <= family for family in FAMILIES)


Differences = dict[str, tuple[Any, Any]]
"""Option -> (value in the source, value in the live optimizer)."""


def compare(source: Rule, live: Rule) -> Differences:
    """Return every option in which the two differ, `decay` under `learning_rate`."""
    have, get = source.values, live.values
    differences: Differences = {}
    separate = APART - {"float32_powers"} if source.algorithm in RECTIFIED else APART
    for key in dict.fromkeys((*have, *get)):
        if key not in separate and not same(have.get(key), get.get(key)) and matters(key, have, get):
            differences[key] = (have.get(key), get.get(key))
    rates = rate_of(source), rate_of(live)
    if source.unknown_rate or live.unknown_rate or not same(*rates):
        differences["learning_rate"] = rates
    if (have.get("gradient_accumulation_steps") or 1) != (get.get("gradient_accumulation_steps") or 1):
        key = "gradient_accumulation_steps"
        differences[key] = (have.get(key), get.get(key))
    return differences


def matters(key: str, have: Mapping[str, Any], get: Mapping[str, Any]) -> bool:
    """Return whether an option has an effect, given the others."""
    if key == "count_calls":
        return any(_counts(values) for values in (have, get))
    if key in ("ema_momentum", "ema_overwrite_frequency"):
        return bool(have.get("use_ema") and get.get("use_ema"))
    if key in ("decoupled_weight_decay", "learning_rate_in_weight_decay"):
        return bool(have.get("weight_decay") or get.get("weight_decay"))
    if key in ("warmup_proportion", "min_lr"):
        return bool(have.get("total_steps") or get.get("total_steps"))
    if key == "clip_order":
        return any(sum(bool(values.get(limit)) for limit in LIMITS) > 1 for values in (have, get))
    if key in ("nesterov", "learning_rate_in_momentum"):
        is_for_momentum = "momentum" in have or "momentum" in get
        return not is_for_momentum or bool(have.get("momentum") or get.get("momentum"))
    if key == "epsilon_inside":
        return bool(have.get("epsilon") or get.get("epsilon"))
    return True


def _counts(values: Mapping[str, Any]) -> bool:
    """Return whether it matters if calls or real steps are counted."""
    averaged_or_scheduled = values.get("use_ema") or isinstance(values.get("learning_rate"), Mapping)
    return bool(averaged_or_scheduled) and (values.get("gradient_accumulation_steps") or 1) > 1


def counts_steps(values: Mapping[str, Any]) -> bool:
    """Return whether real steps are counted, and not calls as in Keras 3."""
    return _counts(values) and not values.get("count_calls")


def as_written(value: Any) -> Any:
    """Return a hyperparameter as the user wrote it: 0.9 for the 0.8999999762 that float32 makes of it."""
    if isinstance(value, Mapping):
        return {key: as_written(member) for key, member in value.items()}
    if isinstance(value, list):
        return [as_written(member) for member in value]
    if isinstance(value, float) and value == float(np.float32(value)):
        return float(str(np.float32(value)))
    return value


def same(a: Any, b: Any) -> bool:
    """Return whether two values of an option are equal: None, False and 0 all switch it off, floats may be float32."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if "class_name" not in a:
            return _same_members(a, b)
        return a.get("class_name") == b.get("class_name") and _same_members(a.get("config", {}), b.get("config", {}))
    if not a and not b:
        return True
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        try:
            return abs(a - b) <= CLOSE * max(abs(a), abs(b))
        except OverflowError:  # an integer that no float holds
            return a == b
    return bool(a == b)


def _same_members(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(same(a.get(key), b.get(key)) for key in {*a, *b} - {"name"})


def rate_of(rule: Rule) -> Any:
    """Return the learning rate as a number, as the JSON of a schedule, or in words; `decay` is inverse time decay."""
    if rule.unknown_rate:
        return rule.unknown_rate
    rate, decay = rates.in_keras(rule.values.get("learning_rate")), rule.values.get("decay")
    if not decay:
        return rate
    if isinstance(rate, Mapping):
        return f"{rate.get('class_name')} with decay {decay:.6g}"
    return time_decay(rate, decay)


def time_decay(rate: Any, decay: Any) -> dict[str, Any]:
    """Return rate / (1 + decay · iterations) as the JSON of the stock schedule that is the same."""
    config = {"initial_learning_rate": rate, "decay_steps": 1, "decay_rate": decay, "staircase": False}
    return {"class_name": "InverseTimeDecay", "config": config}


def nearest_epsilon(epsilon: float, *, inside: bool) -> float:
    """Return the epsilon that keeps the least denominator on the other side of the root.

    Args:
      inside: whether epsilon is inside the root now, √(a + ε), or outside, √a + ε.
    """
    return math.sqrt(epsilon) if inside else epsilon**2


def rate_at(rule: Rule, iterations: int) -> float:
    """Return the learning rate of the step after `iterations` steps. Raises UnsupportedError if it is unknown."""
    if rule.rate is not None:
        return rule.rate(iterations)
    rate = rule.values.get("learning_rate")
    name = rate.get("class_name") if isinstance(rate, Mapping) else None
    if rule.unknown_rate or (name and rates.is_own(rate)):
        raise UnsupportedError(
            f"the learning rate is {rule.unknown_rate or name}, and its value is unknown; give a number, or a"
            " schedule that is called with the step"
        )
    base = schedules.from_config(rate).at(iterations) if isinstance(rate, Mapping) else float(rate or 0.0)
    return base / (1.0 + float(rule.values.get("decay") or 0.0) * iterations)


def learning_rate(state: OptimizerState, steps: int) -> float:
    """Return the learning rate of a source's next step, `decay` and schedules included.

    Args:
      state: what `migrate.read` returned.
      steps: the number of steps before it, from 0 on.

    Raises:
      UnsupportedError: a schedule whose formula is unknown.
    """
    return rate_at(Rule(state.algorithm, state.hyperparameters), steps)


def is_constant(rule: Rule) -> bool:
    """Return whether the learning rate is one number at every step."""
    rate = rule.values.get("learning_rate")
    return not rule.unknown_rate and not isinstance(rate, Mapping) and not rule.values.get("decay")


def described(key: str, have: Any, get: Any) -> str:
    """Return one difference in words."""
    return f"{key} is {_shown(have)} in the source and {_shown(get)} in the live optimizer, which is kept"


def _shown(value: Any) -> str:
    short = rates.shown(value)
    if short is not None:
        return short
    if isinstance(value, Mapping) and "class_name" in value:
        config = ", ".join(f"{k}={_shown(v)}" for k, v in value.get("config", {}).items() if k != "name")
        return f"{value.get('class_name')}({config})"
    return f"{value:.7g}" if isinstance(value, float) else str(value)
