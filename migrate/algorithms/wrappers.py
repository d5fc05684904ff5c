"""Find the optimizer inside a LossScaleOptimizer, or inside a wrapper of TensorFlow Addons, in Keras JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from migrate.algorithms.addons import AVERAGED, as_registered, unregistered
from migrate.algorithms.clipping import LIMITS
from migrate.claims import FILE, HINT, Origin, confirming
from migrate.facts.rows import DENSE, SCALED
from migrate.releases.narrowing import candidates
from migrate.releases.versions import Versions
from optim.errors import HyperparameterError, UnsupportedError

KEYS = ("inner_optimizer", "optimizer")
"""Keys under which a wrapper's config has the optimizer inside it."""
AVERAGING, LOOKAHEAD, STOCHASTIC = "MovingAverage", "Lookahead", "SWA"
OF_MODELS = "ExponentialMovingAverage"
"""The averaging wrapper of tf-models."""
AVERAGES = (AVERAGING, STOCHASTIC, OF_MODELS)
"""Wrappers that keep averages."""
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    AVERAGING: {"average_decay": 0.99},
    LOOKAHEAD: {"sync_period": 6, "slow_step_size": 0.5},
    STOCHASTIC: {"start_averaging": 0, "average_period": 10},
}
"""Settings of TensorFlow Addons' wrappers, in addition to their averages, with their defaults."""
AROUND = {"lookahead": LOOKAHEAD, "stochastic_average": STOCHASTIC}
"""Options of `optim` that do the work of a wrapper -> the wrapper's class."""
LOSS_SCALE = ("LossScaleOptimizer", "LossScaleOptimizerV1", "LossScaleOptimizerV2", "LossScaleOptimizerV3")


def unwrapped(optimizer: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the innermost optimizer (`{}` without optimizer), and its wrappers' class names, the outermost first."""
    *wrappers, inner = layers(optimizer) or [{}]
    return inner, tuple(str(wrapper.get("class_name", "")) for wrapper in wrappers)


def layers(optimizer: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return class and config of each wrapper, the outermost first, and then of the innermost optimizer."""
    chain: list[Mapping[str, Any]] = []
    while optimizer is not None:
        chain.append(optimizer)
        config = optimizer.get("config")
        inside = (config.get(key) for key in KEYS) if isinstance(config, Mapping) else ()
        optimizer = next((inner for inner in inside if isinstance(inner, Mapping) and "class_name" in inner), None)
    return chain


def plain(class_name: str) -> str:
    """Return `Adam` of `Custom>Adam`, the form in which Keras registers classes."""
    return class_name.rpartition(">")[2]


def options(optimizer: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options that express MovingAverage, Lookahead and SWA of TensorFlow Addons; empty without these."""
    settings: dict[str, Any] = {}
    averaging = _config_of(optimizer, AVERAGING)
    if averaging is not None and not averaging.get("dynamic_decay") and not averaging.get("start_step"):
        settings[AVERAGED] = averaging.get("average_decay", SETTINGS[AVERAGING]["average_decay"])
    for option, wrapper in AROUND.items():
        config = _config_of(optimizer, wrapper)
        if config is not None:
            settings[option] = numbers(option, {k: config.get(k, default) for k, default in SETTINGS[wrapper].items()})
    return settings


def origins(optimizer: Mapping[str, Any] | None, is_stored: bool) -> dict[str, Origin]:
    """Return the origins of these options.

    A class without the registered name of TensorFlow Addons may be another class.

    Args:
      is_stored: whether the source itself specifies it, and not the user.
    """
    kind, where = (FILE, "the optimizer's config in the source") if is_stored else (HINT, "--optimizer-config")
    called = [str(as_registered(layer).get("class_name")) for layer in layers(optimizer)]
    option_origins = {}
    for option, value in options(optimizer).items():
        name = {AVERAGED: AVERAGING, **AROUND}[option]
        option_origins[option] = Origin(option, value, kind, f"a wrapper in {where}")
        if is_stored and name in called:
            text = unregistered("the wrapper of the optimizer", name)
            option_origins[option] = replace(option_origins[option], doubt=text, confirm=confirming(option, value))
    return option_origins


def with_limits(optimizer: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the innermost optimizer's config with the gradient limits that act.

    A wrapper of TensorFlow Addons calls the update of the optimizer inside it, and not its `apply_gradients`. The
    wrapper's own limits act, and the optimizer's limits do not (run with 0.20 on TF 2.12).
    """
    outer = _config_of(optimizer, *SETTINGS)
    if outer is None:
        return dict(config)
    rest = {key: value for key, value in config.items() if key not in LIMITS}
    return rest | {key: outer[key] for key in LIMITS if key in outer}


def makes_dense(wrappers: Sequence[str], generation: str, versions: Versions) -> bool | None:
    """Return whether a LossScaleOptimizer makes sparse gradients dense; None if the possible releases differ."""
    if not {*map(plain, wrappers)} & {*LOSS_SCALE}:
        return False
    answer = SCALED.of(candidates(generation, versions))
    return None if answer is None else answer == DENSE


def check_nested(optimizer: Mapping[str, Any] | None, config: Mapping[str, Any], counts: bool) -> None:
    """Refuse nested wrappers of TensorFlow Addons whose steps are not counted or not averaged as here.

    Each wrapper passes its count to the optimizer inside it, in its own `apply_gradients`. Only the outermost wrapper's
    `apply_gradients` is called. An optimizer inside two wrappers therefore takes every step as its first (run with 0.19
    on TF 2.9).

    Args:
      config: of the innermost optimizer, with the options that express wrappers.
      counts: whether a step of the innermost optimizer depends on the step count.

    Raises:
      UnsupportedError: anything except MovingAverage of Lookahead of an optimizer that does not count.
    """
    proper, wrappers = unwrapped(optimizer)
    chain = [name for name in map(plain, wrappers) if name in SETTINGS]
    from_options = [name for option, name in {AVERAGED: AVERAGING, **AROUND}.items() if config.get(option)]
    if max(len(chain), len(from_options)) < 2 or (chain == [AVERAGING, LOOKAHEAD] and not counts):
        return
    way = "continue in the program that wrote it, or start a new optimizer with its weights"
    why = "no class of optim averages like a wrapper inside another one"
    if counts:
        why = (
            "TensorFlow Addons does not count the steps of an optimizer inside two wrappers, so each step was"
            " its first, and no class of optim does that"
        )
    elif len(chain) < len(from_options):
        why, way = (
            "the source does not show which wrapper is the outer one",
            "give the whole config with its wrappers as --optimizer-config",
        )
    name = plain(str(proper.get("class_name") or "an optimizer"))
    raise UnsupportedError(f"{' of '.join([*(chain if len(chain) > 1 else from_options), name])}: {why}; {way}")


def numbers(option: str, settings: Any) -> dict[str, Any]:
    """Return settings of Lookahead or SWA in the form that `optim` takes.

    Raises:
      HyperparameterError: other keys, or values that are not numbers or out of range.
    """
    wrapper = AROUND[option]
    form = json.dumps(SETTINGS[wrapper])
    if not isinstance(settings, Mapping) or settings.keys() != SETTINGS[wrapper].keys():
        raise HyperparameterError(f"{option} must be settings of {wrapper} such as {form}, got {settings!r}")
    values: dict[str, Any] = {}
    for key, value in settings.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        share, least = key == "slow_step_size", 0 if key == "start_averaging" else 1
        if not is_number or not (0 <= value <= 1 if share else value >= least and float(value).is_integer()):
            raise HyperparameterError(
                f"{key} of {wrapper} must be {'in [0, 1]' if share else f'a whole number, at least {least}'}, got"
                f" {value!r}"
            )
        values[key] = value if share else int(value)
    return values


def doubts(optimizer: Mapping[str, Any] | None) -> dict[str, str]:
    """Return wrapper -> what it does in addition to the steps of the optimizer inside, if no class of `optim` does it.

    Source: `lookahead.py`, `moving_average.py`, `stochastic_weight_averaging.py` of TensorFlow Addons 0.23;
    `modeling/optimization/ema_optimizer.py` of tf-models-official 2.12.
    """
    texts = {}
    known = options(optimizer)
    for name in unwrapped(optimizer)[1]:
        called = plain(name)
        if called == OF_MODELS or (called == AVERAGING and AVERAGED not in known):
            texts[called] = (
                f"{called} averages in a way that optim does not: the averages are unmapped, and training"
                " continues without them"
            )
        elif called in SETTINGS and called != AVERAGING:
            config = _config_of(optimizer, called) or {}
            unsaid = [f"{key} = {value!r}" for key, value in SETTINGS[called].items() if key not in config]
            texts |= (
                {called: f"the source does not contain {', '.join(unsaid)} of {called}; dtopt assumes the defaults"}
                if unsaid
                else {}
            )
        elif called in unknown([name]):
            texts[called] = f"{called} wraps the optimizer, and dtopt does not know what it does"
    return texts


def unknown(wrappers: Sequence[str]) -> list[str]:
    """Return the wrapper classes that `migrate` does not know."""
    return [name for name in map(plain, wrappers) if name not in (*LOSS_SCALE, *SETTINGS, *AVERAGES)]


def idle_limits(optimizer: Mapping[str, Any]) -> list[str]:
    """Return the innermost optimizer's gradient limits that do not act, each in words."""
    inner = innermost(optimizer).get("config")
    config = inner if isinstance(inner, Mapping) else {}
    acting = with_limits(optimizer, config)
    return [
        f"{key} is {config[key]!r} in the optimizer inside {' of '.join(unwrapped(optimizer)[1])}, which"
        " ignores it: removed, because it had no effect"
        for key in LIMITS
        if config.get(key) and config[key] != acting.get(key)
    ]


def _config_of(optimizer: Mapping[str, Any] | None, *classes: str) -> Mapping[str, Any] | None:
    """Return the config of the outermost wrapper of one of these classes, None without such a wrapper."""
    named = (wrapper for wrapper in layers(optimizer) if plain(str(wrapper.get("class_name", ""))) in classes)
    return next((wrapper["config"] for wrapper in named if isinstance(wrapper.get("config"), Mapping)), None)


def innermost(optimizer: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the innermost optimizer, `{}` if there is no optimizer."""
    return unwrapped(optimizer)[0]
