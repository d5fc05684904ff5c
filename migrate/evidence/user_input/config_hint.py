"""Check --optimizer-config.

A config that a release wrote also names options that are off, with their values: these confirm the source.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from migrate.algorithms import addons, wrappers
from migrate.algorithms.clipping import LIMITS
from migrate.algorithms.keras_config import NO_EFFECT, SHARED
from migrate.algorithms.spec import number, whole
from migrate.bytes.messages import some
from migrate.errors import ContradictionError
from migrate.evidence.value_checks import OPTIONS
from migrate.generations import traits
from optim.errors import HyperparameterError

WHERE = "--optimizer-config"
AROUND_CONFIG = {"module", "registered_name", "build_config", "compile_config", "shared_object_id", "name"}
"""Members that Keras writes next to class and config, which contain everything."""
LEGACY = "is_legacy_optimizer"
"""A key of configs from TF 2.11 on that shows which generation of Keras 2 they are of."""
SWITCHES = ("jit_compile", LEGACY, "foreach", "fused")
OFF = {"use_ema": False, "ema_momentum": 0.99, "learning_rate": 0.0}
"""Options of every optimizer that have a value in a LossScaleOptimizer's config of Keras 3; the others are None."""
OF_WRAPPERS: Mapping[str, Collection[str]] = {
    wrappers.AVERAGING: ("average_decay", "num_updates", "start_step", "dynamic_decay", *LIMITS),
    wrappers.LOOKAHEAD: ("sync_period", "slow_step_size", *LIMITS),
    wrappers.STOCHASTIC: ("start_averaging", "average_period", *LIMITS),
    **dict.fromkeys(wrappers.LOSS_SCALE, ("initial_scale", "dynamic", "dynamic_growth_steps", "loss_scale", *SHARED)),
}
"""Members of the configs of wrappers, without the optimizer inside."""
RANGES = {key: kind for key, kind in OPTIONS.items() if key in (*LIMITS, "ema_momentum")}
DECAYING = (*addons.OWNERS[addons.PER_STEP], *addons.OWNERS[addons.PER_RATE])
SHOWN = 12
"""How many names a message shows."""


def check_document(document: Mapping[str, Any] | None, stored: Mapping[str, Any] | None) -> None:
    """Refuse members that nothing reads, and a wrapper that the source's own config contradicts.

    Args:
      document: the hint, if there is one.
      stored: the source's optimizer config, if it has one.

    Raises:
      HyperparameterError: with the members that are possible. ContradictionError: with both wrappers.
    """
    hinted = wrappers.unwrapped(document)[1]
    stored_wrappers = wrappers.unwrapped(stored)[1] if stored else hinted
    if hinted and [*map(wrappers.plain, hinted)] != [*map(wrappers.plain, stored_wrappers)]:
        has = f"has {' of '.join(stored_wrappers)} around it" if stored_wrappers else "has no wrapper"
        raise ContradictionError(
            f"{WHERE} has the optimizer in {' of '.join(hinted)}, and the optimizer's config in the source {has}."
            " Remove the wrong wrapper from the hint"
        )
    layers = wrappers.layers(document)
    for layer in layers:
        _check_members(layer)
    for layer, name in zip(layers, hinted, strict=False):  # all except the optimizer itself
        _check_wrapper(wrappers.plain(name), layer["config"])


def _check_members(document: Mapping[str, Any]) -> None:
    strange = document.keys() - {"class_name", "config", *AROUND_CONFIG}
    if strange:
        key = min(strange)
        raise HyperparameterError(
            f"{WHERE} has {key!r} next to class_name and config, where nothing reads it. Arguments of the optimizer's"
            " constructor belong in config"
        )


def _check_wrapper(name: str, config: Mapping[str, Any]) -> None:
    known = OF_WRAPPERS.get(name)
    if known is None:
        return  # its effect is unknown, and a warning covers it
    for key, value in config.items():
        if key in (*wrappers.KEYS, *NO_EFFECT):
            check_without_effect(key, value)
        elif key not in known:
            raise refused(key, value, f"{name} has no {key}; it has {some(sorted(known), SHOWN)}")
        elif key in SHARED and name in wrappers.LOSS_SCALE:
            if value is not None and value != OFF.get(key):
                raise refused(key, value, f"{name} ignores it. Remove it")
        elif key != "loss_scale" and value is not None and not isinstance(value, (int, float)):
            raise refused(key, value, f"{name} takes a number, or true or false, for it")


def check_legacy(value: Any, generation: str) -> None:
    """Raises ContradictionError if `value` is that of the other generation of Keras 2."""
    if isinstance(value, bool) and traits(generation).legacy_flag not in (None, value):
        raise ContradictionError(
            f"{LEGACY} is {value!r} in {WHERE}, and the source is of generation {generation}: one of the two is from"
            " another run"
        )


def is_written(key: str, called: str, generation: str, config: Mapping[str, Any]) -> bool:
    """Return whether a release writes an option into a config even if it has no effect, as that config shows."""
    if key in LIMITS or (key == "decay" and traits(generation).ignores_decay):
        return True  # and the report shows what they did
    if key == addons.EXCLUDED:
        return called in DECAYING  # with the amount of decay, which dtopt asks for
    if key == "gradient_accumulation_steps":
        return traits(generation).accumulates_gradients and config[key] == 1
    return (
        key in ("ema_momentum", "ema_overwrite_frequency") and traits(generation).has_averages and "use_ema" in config
    )


def check_without_effect(key: str, value: Any) -> None:
    """Refuse a value of another type than any release writes: the user meant another option."""
    fits = {
        **dict.fromkeys(SWITCHES, value is None or isinstance(value, bool) or value == "auto"),
        "name": value is None or isinstance(value, str),
        "loss_scale_factor": value is None or (isinstance(value, (int, float)) and value > 0),
    }
    if not fits.get(key, True):
        raise refused(key, value, "no release writes that value")


def check_number(key: str, value: Any) -> None:
    """Check an option that may be off and that nothing else would check.

    Raises:
      UnsupportedError, HyperparameterError: not a number, or out of its range.
    """
    if value is None or value is False:
        return
    if key == "ema_overwrite_frequency":
        whole({key: value}, key)
    if key in RANGES:
        RANGES[key].check(f"{key} in {WHERE}", number({key: value}, key))


def refused(key: str, value: Any, why: str) -> HyperparameterError:
    return HyperparameterError(f"{key} = {value!r} in {WHERE} has no effect: {why}")
