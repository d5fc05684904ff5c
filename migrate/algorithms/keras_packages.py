"""Convert configs from packages used with Keras 2 to terms of Keras, or of TensorFlow Addons.

| class | package, source | rule |
|---|---|---|
| AdamW, NadamW, SGDW | keras-adamw 1.38, `optimizers*.py` | Adam, Nadam, SGD, and p ← p − λ·√(1/total_iterations)·p |
| NadamW of tf.keras | keras-adamw 1.38, `optimizers_v2.py` | not Keras's: another momentum, and √(v + ε) |
| RAdam | keras-rectified-adam 0.15, `optimizers.py`, `optimizer_v2.py` | RectifiedAdam, with a threshold of 5 |
| Yogi | keras-contrib 2.0.8, `yogi.py` | Yogi, without regularization |
| LARS | keras-contrib 2.0.8, `lars.py` | SGD: it looks for weights to compute a norm of, and finds no weights |

No file names the package of a class. Its config nearly does: these classes save keys that no other known class of the
same name saves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from migrate.algorithms import foreign
from migrate.algorithms.addons import EXCLUDED, PER_STEP
from migrate.algorithms.spec import Algorithm
from migrate.algorithms.wrappers import plain as plain_name
from migrate.generations import traits
from optim.errors import UnsupportedError

ADAMW, RADAM, CONTRIB = "keras-adamw", "keras-rectified-adam", "keras-contrib"
_PLAIN = {"SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "Adamax", "Nadam"}
_DECAYED = {"AdamW": "Adam", "NadamW": "Nadam", "SGDW": "SGD"}
_MARKS = {"weight_decays", "total_iterations", "use_cosine_annealing", "eta_t", "t_cur"}
_ANNEALING = {*_MARKS, "lr_multipliers", "autorestart", "eta_min", "eta_max", "init_verbose"}
_WARMED = {"total_steps", "warmup_proportion", "min_lr", "weight_decay"}
_WRAPPERS = {"Lookahead": ("slow_step", "keras-lookahead"), "LRMultiplier": ("multipliers", "keras-lr-multiplier")}
"""Wrapper class -> a config key that no other class of that name has, and its package."""
_NO_RULE = f"no rule here does; {foreign.HOW}"
_YOGI = {
    "l1_regularization_strength": 0.0,
    "l2_regularization_strength": 0.0,
    "initial_accumulator_value": 0.0,
    "activation": "sign",
}
_LARS = {"eeta", "weight_decay", "epsilon"}


def package(plain: str, config: Mapping[str, Any], generation: str) -> str:
    """Return the package of a class, by its config; empty if it is not one of these packages."""
    is_extended = traits(generation).is_extended_by_packages
    if is_extended and plain in _DECAYED and config.keys() >= _MARKS:
        return ADAMW
    if is_extended and plain == "RAdam" and config.keys() >= _WARMED:
        return RADAM
    is_contrib = (plain == "LARS" and config.keys() >= _LARS) or (plain == "Yogi" and "beta_1" in config)
    return CONTRIB if is_contrib and traits(generation).is_native else ""


def as_keras(
    plain: str, config: Mapping[str, Any], generation: str, variables: Sequence[str]
) -> tuple[str, dict[str, Any]] | None:
    """Return class and config under names known here, None if the class is not from one of these packages.

    Args:
      variables: names of all variables; keras-adamw names those that decay.

    Raises:
      UnsupportedError: options of keras-adamw that no rule here has.
    """
    whose = package(plain, config, generation)
    if whose == ADAMW:
        return _DECAYED[plain], _decayed(plain, config, generation, variables)
    if whose == RADAM:
        return "RectifiedAdam", {**config, "sma_threshold": 5.0}
    if whose == CONTRIB and plain == "LARS":
        return "SGD", {"decay": 0.0, **{key: value for key, value in config.items() if key not in _LARS}}
    return ("Yogi", {**_YOGI, **config}) if whose == CONTRIB else None


def is_plain(algorithm: Algorithm, config: Mapping[str, Any]) -> bool:
    """Return whether steps are those of a Keras class before OptimizerV2, without the additions of keras-adamw."""
    return algorithm.name in _PLAIN and not config.get(PER_STEP)


def inner(called: str, generation: str) -> str:
    """Return the Keras class for one that the user names in these generations, `class_name=SGDW`; else empty."""
    if traits(generation).is_native:
        return {**_DECAYED, "RAdam": "RectifiedAdam", "LARS": "SGD"}.get(called, "")
    return "RectifiedAdam" if traits(generation).is_extended_by_packages and called == "RAdam" else ""


def _decayed(plain: str, config: Mapping[str, Any], generation: str, variables: Sequence[str]) -> dict[str, Any]:
    if plain == "NadamW" and not traits(generation).is_native:
        raise UnsupportedError(
            f"{plain} of {ADAMW} for tf.keras uses another momentum than Keras and adds epsilon before the"
            f" root, which {_NO_RULE}"
        )
    if config.get("use_cosine_annealing") or config.get("lr_multipliers") or config["eta_t"] != 1:
        raise UnsupportedError(
            f"{plain} of {ADAMW} anneals its rate and decay, or multiplies the rate by layer, which {_NO_RULE}"
        )
    settings = {key: value for key, value in config.items() if key not in _ANNEALING}
    if plain == "SGDW" and traits(generation).is_native:
        settings["decay"] = 0.0  # its steps read the rate itself
    settings[PER_STEP] = 0.0
    penalties = {name: tuple(pair) for name, pair in (config["weight_decays"] or {}).items() if any(pair)}
    if penalties:
        settings[PER_STEP] = _amount(plain, set(penalties.values())) / math.sqrt(config["total_iterations"])
        decaying = {name.removesuffix(":0") for name in penalties}
        settings[EXCLUDED] = [
            f"^{re.escape(name)}(:0)?$" for name in variables if name.removesuffix(":0") not in decaying
        ]
    return settings


def _amount(plain: str, penalties: set[tuple[float, ...]]) -> float:
    if len(penalties) == 1:
        (l1, l2), *_ = penalties
        if not l1:
            return float(l2)
    raise UnsupportedError(
        f"{plain} of {ADAMW} decays weights by their signs, or by different amounts, which {_NO_RULE}"
    )


def doubt(plain: str, config: Mapping[str, Any], generation: str) -> str:
    """Return why the class may not have the assumed rule; empty if it is not from one of these packages."""
    whose = package(plain, config, generation)
    if not whose:
        return ""
    unsaid = ", without lr_multipliers and total_iterations_wd, which the file may lack" if whose == ADAMW else ""
    return f"the class is {plain}; by its config dtopt assumes the one of {whose}{unsaid}"


def unfound(config: Mapping[str, Any], variables: Sequence[str]) -> list[str]:
    """Return weights that keras-adamw lets decay and that match no variable's name."""
    known = {name.removesuffix(":0") for name in variables}
    decaying = config.get("weight_decays") if config.keys() >= _MARKS else None
    return [name for name in decaying or () if name.removesuffix(":0") not in known]


def check_wrappers(layers: Sequence[Mapping[str, Any]]) -> None:
    """Refuse wrappers that keep their state among the state of the optimizer inside.

    Args:
      layers: class and config of each, see `wrappers.layers`.
    """
    for layer in layers:
        name, config = str(layer.get("class_name")), layer.get("config")
        mark, whose = _WRAPPERS.get(plain_name(name), ("", ""))
        if whose and isinstance(config, Mapping) and mark in config:
            raise UnsupportedError(
                f"{name} of {whose} wraps the optimizer and is not supported. Restart from the weights, with"
                " the inner optimizer"
            )
