"""Read the learning rates of configs: numbers, Keras's schedules, or others.

Arguments and defaults: `keras/optimizers/schedules/learning_rate_schedule.py` 2.13 and 3.0 to 3.15, and
`tensorflow/python/keras/optimizer_v2/learning_rate_schedule.py` of TF 2.0 to 2.4. Their `get_config` names all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from migrate.algorithms.spec import number
from migrate.generations import traits
from optim import schedules
from optim.errors import HyperparameterError, UnsupportedError

FORMULA = "Formula"
"""The schedule of `optim` that evaluates the ops of a TensorFlow 1 graph for its rate."""
OPTIONAL: dict[str, dict[str, Any]] = {
    "ExponentialDecay": {"staircase": False},
    "PiecewiseConstantDecay": {},
    "PolynomialDecay": {"end_learning_rate": 0.0001, "power": 1.0, "cycle": False},
    "InverseTimeDecay": {"staircase": False},
    "CosineDecay": {"alpha": 0.0},
    "CosineDecayRestarts": {"t_mul": 2.0, "m_mul": 1.0, "alpha": 0.0},
}
"""Keras's schedules -> the defaults of their optional arguments."""
WARM_UP = {"warmup_target": None, "warmup_steps": 0}
"""Arguments of CosineDecay, since TF 2.13, with their defaults."""
SCHEDULES = tuple(OPTIONAL)
PHASES = tuple(name for name in schedules.OWN if name != FORMULA)
"""Schedules of `optim` that Keras does not have."""
PARTS = ("warmup_steps", "stable_steps", "decay_steps")
"""Arguments for the lengths of their phases, in order."""


def read(value: Any, generation: str) -> tuple[float | dict[str, Any], str]:
    """Return a float, or a schedule's JSON with all its arguments and without `module` and `registered_name`.

    Returns:
      The rate, and a text on which of its arguments `migrate` assumed; empty if it assumed nothing.

    Raises:
      UnsupportedError: neither a number nor a schedule.
      HyperparameterError: a schedule of Keras's with arguments that it cannot have.
    """
    if not isinstance(value, Mapping):
        return number({"learning_rate": value}, "learning_rate"), ""
    name, config = _name(value), value.get("config")
    if not name or not isinstance(config, Mapping):
        raise UnsupportedError(
            f"the learning rate is {dict(value)!r}, which names no schedule with its config; give a number or"
            ' {"class_name": ..., "config": {...}} as "learning_rate" in --optimizer-config'
        )
    optional = OPTIONAL.get(name, {})
    if name == "CosineDecay" and (traits(generation).cosine_decay_warms_up or WARM_UP.keys() & config.keys()):
        optional = optional | WARM_UP
    added = {key: default for key, default in optional.items() if key not in config}
    defaults = ", ".join(f"{key} = {default!r}" for key, default in added.items())
    assumed = f"the config of the schedule {name} is incomplete; dtopt assumes {defaults}" if added else ""
    rate = {"class_name": name, "config": {**config, **added}}
    if name in schedules.KNOWN:
        _check(rate)
    return rate, assumed


def _check(rate: Mapping[str, Any]) -> None:
    """Refuse a schedule that `optim` could not continue."""
    try:
        schedules.from_config(rate)
    except HyperparameterError as error:
        raise HyperparameterError(
            f"the learning rate is a {rate['class_name']} that dtopt cannot continue: {error}. Give the"
            " current rate with --set learning_rate=VALUE"
        ) from error


def _name(value: Mapping[str, Any]) -> str:
    """Return the class, with its package if it is not Keras's own: it may share a name with one of those."""
    name, module, registered = (value.get(key) for key in ("class_name", "module", "registered_name"))
    if isinstance(module, str) and module.partition(".")[0] == "optim":
        return str(name)
    if name in PHASES:  # the user's own: Keras has no schedule of that name
        return f"{module or 'own'}>{name}"
    if isinstance(registered, str) and registered:
        return registered if ">" in registered else f"{module or 'own'}>{registered}"
    if isinstance(module, str) and module.partition(".")[0] not in ("keras", "tf_keras", "tensorflow"):
        return f"{module}>{name}"
    return str(name or "")


def named(document: Any, plain: Any) -> Any:
    """Return a rate of an `optim.for_keras` config, whose schedule may have the form that Keras saves.

    Args:
      document: as stored.
      plain: the same without `module` and `registered_name`.
    """
    if not isinstance(document, Mapping) or "registered_name" not in document:
        return plain
    rate = {**plain, "class_name": _name(document)}
    return {**rate, "dtype": "float32"} if rate["class_name"] in SCHEDULES else rate  # as Keras computes it


def in_keras(rate: Any) -> Any:
    """Return a rate in Keras's form: a warm-up before CosineDecay becomes its argument; other rates stay the same."""
    if not isinstance(rate, Mapping) or rate.get("class_name") != "LinearWarmup":
        return rate
    warm_up, inner = rate["config"], rate["config"]["schedule"]
    if not isinstance(inner, Mapping) or inner.get("class_name") != "CosineDecay":
        return rate
    config = dict(inner["config"])
    if config.get("warmup_target") is not None:
        return rate
    config |= {"warmup_target": config["initial_learning_rate"], "warmup_steps": warm_up["warmup_steps"]}
    config["initial_learning_rate"] = warm_up.get("initial_learning_rate", 0.0)
    return {**{key: value for key, value in inner.items() if key != "module"}, "config": config}


def ends_of_phases(rate: Any) -> list[float]:
    """Return the steps at which a schedule of `optim` changes phase, without those of a schedule inside it."""
    config = rate["config"] if isinstance(rate, Mapping) and rate.get("class_name") in PHASES else {}
    if "total_steps" in config:
        up = config["pct_start"] * config["total_steps"] - 1
        return [up, 2 * up, config["total_steps"] - 1]
    return list(itertools.accumulate(config[key] for key in PARTS if key in config))


def is_own(rate: Any) -> bool:
    """Return whether a rate from `read` is a schedule that neither Keras nor `optim` has."""
    return isinstance(rate, Mapping) and not schedules.is_known(rate)


def shown(rate: Any) -> str | None:
    """Return a short text for a rate whose arguments are too long to read; None for another rate."""
    is_formula = isinstance(rate, Mapping) and rate.get("class_name") == FORMULA
    return f"{FORMULA} of {len(rate['config']['operations'])} operations" if is_formula else None
