"""Settings that --set may give, and their names in configs and in `optim`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from migrate.algorithms import ALGORITHMS, addons, foreign
from migrate.algorithms.clipping import LIMITS
from migrate.algorithms.keras_config import LAZY_ROWS, SHARED
from migrate.algorithms.repeated_rows import REPEATED
from migrate.algorithms.spec import Algorithm
from migrate.algorithms.wrappers import AROUND
from migrate.bytes.messages import some
from migrate.claims import confirming
from migrate.errors import ContradictionError
from migrate.evidence.configuration import CLASS, GENERATION
from migrate.evidence.value_checks import OPTIONS
from migrate.generations import traits
from migrate.rules.comparison import same
from migrate.state import CHANGED, GATHERED
from optim import rules
from optim.arguments import Choice, Hyperparameter
from optim.errors import HyperparameterError
from optim.rule import arguments

OPTIM_ONLY = ("learning_rate_in_linear", "new_delta_in_step")
"""Arguments of `optim`'s rules that no config has, and that --set may give."""
CLIP_ORDER = "clip_order"
"""A setting of every optimizer."""
OF_PROGRAM = "program"
"""Value of `gradients` if the program itself continues to change them as it did."""
OF_THE_SOURCE = {
    *(CLASS, GENERATION, foreign.OWN_RULE, REPEATED, CHANGED, GATHERED),
    *("iterations", "untrained", "slot_order", "zero_slots"),
}
"""Settings that are not hyperparameters; the code that reads one checks its value."""
BECOMES = {
    "clipnorm": ("global_clipnorm",),
    addons.AVERAGED: ("ema_momentum",),
    addons.PER_STEP: ("weight_decay",),
    addons.PER_RATE: ("weight_decay",),
    addons.LAZY: (LAZY_ROWS,),
}
"""Names in configs -> the names in `optim` under which generations before Keras 2.9 are migrated."""


def with_one_rate(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides with the learning rate under its newer name: Keras called it `lr` before 2.3.

    Raises:
      ContradictionError: both names, with two values.
    """
    settings = dict(overrides)
    if "lr" not in settings:
        return settings
    rate = settings.pop("lr")
    if not same(settings.setdefault("learning_rate", rate), rate):
        raise ContradictionError(
            f"--set has lr={rate!r} and learning_rate={settings['learning_rate']!r}, which are the same setting. Remove"
            " the wrong one"
        )
    return settings


def is_carried(key: str, algorithm: Algorithm, values: Collection[str]) -> bool:
    """Return whether a state has an argument of that name, or --set may give it one.

    Args:
      values: names of the arguments that the state has.
    """
    rule = rules.of(algorithm.name)
    optim_only = OPTIM_ONLY if rule is not None and key in arguments(rule) else ()
    return key in values or key in (CLIP_ORDER, *optim_only)


def check_numbers(overrides: Mapping[str, Any], algorithm: Algorithm) -> None:
    """Refuse values that no optimizer takes, before anything is blamed on the source. Raises HyperparameterError."""
    for key, value in overrides.items():
        declared = _declared(key, algorithm)
        is_schedule = key == "learning_rate" and isinstance(value, Mapping)
        if not isinstance(declared, Hyperparameter) or value is None or is_schedule:
            continue
        try:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise HyperparameterError(f"{key} must be a number, got {value!r}")
            declared.check(key, float(value))
        except HyperparameterError as error:
            raise HyperparameterError(f"{confirming(key, value)}: {error}") from error


def _declared(key: str, algorithm: Algorithm) -> Any:
    rule = rules.of(algorithm.name)
    return OPTIONS.get(key) or (arguments(rule).get(key) if rule is not None else None)


def as_declared(key: str, value: Any, algorithm: Algorithm) -> Any:
    """Return a whole number as a float if the setting is one: Keras refuses `learning_rate=1`."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_whole and isinstance(_declared(key, algorithm), Hyperparameter) else value


def needs_value(key: str, algorithm: Algorithm, generation: str) -> bool:
    """Return whether an option always has a value: None would neither switch it off nor be a default of Keras."""
    defaults, rule = algorithm.defaults(generation), rules.of(algorithm.name)
    if key in defaults:
        default = defaults[key]
        return bool(default) and type(default) in (int, float) and key != "epsilon"
    declared = arguments(rule).get(key) if rule is not None else None
    return key == CLIP_ORDER or (isinstance(declared, Choice) and declared.default not in (None, ()))


def acts(key: str, value: Any, algorithm: Algorithm, generation: str, names: Collection[str]) -> bool:
    """Return whether a hyperparameter is migrated, or correctly specifies that something is off.

    Args:
      names: of the hyperparameters and scalars of the state.
    """
    acting = {*names, *algorithm.defaults(generation)}
    acting |= {traits(generation).schedule_decay_key} if "schedule_decay" in names else set()
    becomes = {} if traits(generation).has_averages else BECOMES
    if key in acting or acting.intersection(becomes.get(key, ())):
        return True
    return key in known() and (value is None or value is False or value == 0 or value in ([], ()))


def check_owner(text: str, key: str, value: Any, algorithm: Algorithm, called: str, generation: str) -> None:
    """Refuse an option that only other classes have: it would change the rule of this class.

    Args:
      text: option and value as the user gives them.
      called: the class name in the source or in a hint.

    Raises:
      HyperparameterError: with these classes.
    """
    owners = addons.OWNERS.get(key, ())
    if not owners or key in algorithm.defaults(generation) or algorithm.is_foreign:
        return
    if called.rpartition(">")[2].rpartition(".")[2] in owners or same(value, key == addons.CORRECTED):
        return
    has = f"{some(owners)} {'have' if len(owners) > 1 else 'has'} it"
    how = f"; if it is one of these, add {confirming('class_name', owners[0])}"
    raise HyperparameterError(
        f"{text}: {called} of generation {generation} has no {key}; {has}"
        + (how if traits(generation).is_extended_by_addons else ", which no program of that generation had")
    )


@cache
def known() -> frozenset[str]:
    """Return the names of all hyperparameters of all generations."""
    keys = {key for a in ALGORITHMS for generation in a.generations for key in a.defaults(generation)}
    return frozenset({*keys, *SHARED, *LIMITS, *BECOMES, *OPTIM_ONLY, CLIP_ORDER, *AROUND, LAZY_ROWS, addons.EXCLUDED})
