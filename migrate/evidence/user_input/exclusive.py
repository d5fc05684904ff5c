"""Refuse options that exclude each other, or of which a release applies only one, before anything is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from migrate.algorithms.clipping import LIMITS
from migrate.algorithms.keras_config import LAZY_ROWS
from migrate.bytes.messages import brief
from migrate.claims import confirming
from migrate.generations import traits
from migrate.rules.comparison import same
from optim.errors import HyperparameterError, UnsupportedError
from optim.options import exclusive
from optim.rule import Rule, made_from


def check_given(config: Mapping[str, Any], overrides: Collection[str], generation: str) -> None:
    """Refuse an option that the user sets next to one that it excludes.

    Args:
      config: all settings of source and hints, under Keras's names.
      overrides: names of the options that were given with --set.

    Raises:
      HyperparameterError: with both values, and how to remove one of them.
    """
    for one, other, why in (*exclusive.EXCLUSIVE, *_of_generation(generation)):
        user_options = [key for key in (one, other) if key in overrides]
        if not user_options or not (exclusive.is_on(config.get(one)) and exclusive.is_on(config.get(other))):
            continue
        if traits(generation).is_native and (one, other) == LIMITS[:2] and same(config[one], config[other]):
            continue  # these releases have no global_clipnorm: the user sets the meaning of clipnorm with it
        left = [key for key in (one, other) if key not in user_options]
        how = f"leave {left[0]} out with {confirming(left[0], None)}" if left else "give one of them"
        raise HyperparameterError(
            f"{one} = {brief(config[one])} and {other} = {brief(config[other])} exclude each other: {why}; {how}"
        )


def _of_generation(generation: str) -> list[tuple[str, str, str]]:
    """Return pairs of limits. Optimizers from TF 2.9's experimental on apply the first that is set, and no other."""
    if not traits(generation).has_averages:
        return []
    why = f"optimizers of generation {generation} apply one limit alone"
    return [(LIMITS[0], LIMITS[2], why), (LIMITS[1], LIMITS[2], why)]


def check_state(algorithm: str, hyperparameters: Mapping[str, Any], rule: type[Rule] | None) -> None:
    """Raises UnsupportedError for a state whose options no optimizer takes together."""
    pair = exclusive.conflict(hyperparameters)
    if pair is not None:
        one, other, _ = pair
        raise UnsupportedError(
            f"{exclusive.described(pair)}: no {algorithm} takes both; keep one of them with"
            f" {confirming(one, None)} or {confirming(other, None)}"
        )
    if rule is None:
        return
    try:
        instance, _ = made_from(rule, hyperparameters)
    except HyperparameterError as error:
        raise UnsupportedError(f"{error}; give the right value with --set NAME=VALUE") from error
    if hyperparameters.get(LAZY_ROWS) and not instance.elementwise:
        raise UnsupportedError(
            f"{LAZY_ROWS} = {brief(hyperparameters[LAZY_ROWS])}: a step of {algorithm} cannot leave single rows out."
            f" Use {confirming(LAZY_ROWS, [])}"
        )
