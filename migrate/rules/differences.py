"""Find what another generation would do differently with the same state.

`migrate.algorithms.keras_config` reads the same config for that generation, and this module compares the resulting
arguments of `optim`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from migrate.algorithms import keras_config, lazy_rows, repeated_rows
from migrate.algorithms.arguments import Arguments
from migrate.algorithms.spec import Algorithm
from migrate.facts.clipping import ALL, NORM
from migrate.generations import traits
from migrate.releases.modules import NEWEST
from migrate.releases.narrowing import candidates
from migrate.releases.versions import UNKNOWN, Versions
from migrate.rules.comparison import defaults, matters, same
from migrate.rules.step_factors import BY_NAME, DECAYED, LAZY, NO_STEP, REPEATED, ROUNDING
from migrate.state import OptimizerState
from optim.errors import UnsupportedError

SLOT_MEANING = {"learning_rate_in_momentum": True, "learning_rate_in_linear": False}
"""Arguments that define the numbers in a slot, with `optim`'s defaults."""
ONLY_WITH = {"ema_momentum": "use_ema", "ema_overwrite_frequency": "use_ema"}
APART = {
    *NO_STEP,
    *(argument for name in (DECAYED, LAZY, REPEATED, ROUNDING) for argument in BY_NAME[name].arguments),
    *("initial_velocity", "ema_start"),
}
"""Arguments that no config of Keras holds: they do not affect a step, or `_row_and_decay_differences` compares them."""


def config_for(state: OptimizerState, algorithm: Algorithm, generation: str) -> dict[str, Any]:
    """Return the hyperparameters as a config of that generation, without rule variants that only programs choose."""
    values = {key: value for key, value in state.hyperparameters.items() if key not in keras_config.PROGRAMS_OWN}
    config = {**algorithm.defaults(generation), **values}
    if NORM.of(candidates(generation)) == ALL and config.get("global_clipnorm"):
        config["clipnorm"] = config.pop("global_clipnorm")
    if algorithm.name == "Nadam":
        config.pop("decay", None)
    return config


def differences(
    state: OptimizerState, algorithm: Algorithm, generation: str, config: Mapping[str, Any] | None = None
) -> list[str]:
    """Return what the generation would do differently.

    Args:
      config: what an optimizer of its newest release is given. None for the state's hyperparameters as they are, and
        for the release that wrote the state if it is of that generation.

    Raises:
      UnsupportedError: its slots hold something else.
    """
    known = versions(state, generation) if config is None else NEWEST[generation]
    dtypes = {array.dtype for owners in state.slots.values() for array in owners.values()}
    config = config_for(state, algorithm, generation) if config is None else config
    theirs = keras_config.arguments(config, {}, algorithm, generation, known, dtypes).values
    ours, unsaid, reasons = state.hyperparameters, defaults(algorithm.name), []
    for key in dict.fromkeys((*ours, *theirs)):
        switch = ONLY_WITH.get(key)
        if key in APART or (switch and not ours.get(switch)) or (key == "clip_order" and key not in theirs):
            continue
        default = SLOT_MEANING.get(key, unsaid.get(key))
        have, get = ours.get(key, default), theirs.get(key, default)
        if same(have, get) or (key == "count_calls" and not matters(key, ours, theirs)):
            continue
        if key in SLOT_MEANING:
            raise UnsupportedError(
                f"the slots contain other numbers than those of generation {generation} ({key} is {have!r} here and"
                f" {get!r} there), so its list cannot contain them"
            )
        on = "without it" if get is None else f"with {_shown(get)}"
        reasons.append(f"{key} is {_shown(have)} here, and generation {generation} continues {on}")
    return [*reasons, *_row_and_decay_differences(state, algorithm, generation, {**config, **theirs})]


def _shown(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else repr(value)


def versions(state: OptimizerState, generation: str) -> Versions:
    """Return the source's versions if it is of that generation, without its backend.

    dtopt assumes that a target continues with TensorFlow.
    """
    is_same = state.source is not None and state.source.generation == generation
    return replace(state.source.versions, backend="") if state.source is not None and is_same else UNKNOWN


def _row_and_decay_differences(
    state: OptimizerState, algorithm: Algorithm, generation: str, config: Mapping[str, Any]
) -> list[str]:
    """Return what a config does not pass to an optimizer: which rows and variables it does not change."""
    arguments, ours = Arguments(), state.hyperparameters
    names = [v.name for v in state.variables if v.trainable]
    config = {key: value for key, value in config.items() if key != keras_config.LAZY_ROWS}
    lazy_rows.put_in(arguments, config, algorithm, generation, names)
    kept = bool(arguments.values.get(keras_config.LAZY_ROWS))
    theirs = repeated_rows.done(generation, algorithm, config, versions(state, generation))
    has_backends = traits(generation).has_backends
    called = "Keras 3 on the TensorFlow backend" if has_backends else f"generation {generation}"
    different = repeated_rows.difference(state, algorithm, theirs, called)
    reasons = [different] if different else []
    if ours.get(keras_config.LAZY_ROWS) and not kept:
        reasons.append(f"lazy_rows: generation {generation} moves rows without a gradient, too")
    if kept and not ours.get(keras_config.LAZY_ROWS):
        reasons.append(f"embeddings: generation {generation} does not change rows without a gradient, which move here")
    if ours.get("weight_decay") and ours.get("weight_decay_exclude"):
        reasons.append("weight_decay_exclude: call exclude_from_weight_decay again, the target does not contain it")
    return reasons
