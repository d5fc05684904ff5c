"""Compare the user's settings with the optimizer that is migrated: each acts, confirms the source, or is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from migrate.algorithms.keras_config import NO_EFFECT, lacks
from migrate.algorithms.spec import Algorithm
from migrate.bytes.messages import some
from migrate.claims import confirming
from migrate.evidence.user_input import config_hint, settings
from migrate.evidence.user_input.config_hint import SHOWN, WHERE
from optim.errors import HyperparameterError


@dataclass(frozen=True)
class Migrated:
    """The optimizer that is migrated.

    Attributes:
      called: its class name in the source or from the user.
      arguments: of `optim`'s class.
      state: names of the scalars that it keeps.
    """

    algorithm: Algorithm
    called: str
    generation: str
    arguments: Mapping[str, Any]
    state: Collection[str]

    def acts(self, key: str, value: Any, names: Collection[str]) -> bool:
        return settings.acts(key, value, self.algorithm, self.generation, names)

    def check_owner(self, text: str, key: str, value: Any) -> None:
        settings.check_owner(text, key, value, self.algorithm, self.called, self.generation)

    def has_no(self, text: str, key: str, names: Collection[str]) -> HyperparameterError:
        has = some([name for name in names if name != "name"], SHOWN)
        return HyperparameterError(
            f"{text} has no effect: {self.algorithm.name} of generation {self.generation} has no {key}; it has {has}"
        )


def check(overrides: Mapping[str, Any], hint: Mapping[str, Any], migrated: Migrated) -> None:
    """Refuse settings that nothing uses.

    Args:
      overrides: of --set.
      hint: the config in --optimizer-config, under Keras's names.

    Raises:
      HyperparameterError: with the settings that the optimizer has. ContradictionError: a hint of another generation.
    """
    _check_overrides(overrides, migrated)
    _check_hint(hint, migrated)


def _check_overrides(overrides: Mapping[str, Any], migrated: Migrated) -> None:
    if not isinstance(overrides.get("name", ""), str):
        raise HyperparameterError(f"name must be a text, got {overrides['name']!r}")
    for key, value in overrides.items():
        if value is None and settings.needs_value(key, migrated.algorithm, migrated.generation):
            raise HyperparameterError(f"{confirming(key, None)} needs a value. Give one, or remove it")
    names = [*migrated.arguments, *migrated.state]
    for key, value in overrides.items():
        text = confirming(key, value)
        migrated.check_owner(text, key, value)
        if key not in (*settings.OF_THE_SOURCE, "name") and not migrated.acts(key, value, names):
            raise migrated.has_no(text, key, names)


def _check_hint(hint: Mapping[str, Any], migrated: Migrated) -> None:
    algorithm, generation = migrated.algorithm, migrated.generation
    config_hint.check_legacy(hint.get(config_hint.LEGACY), generation)
    for key, value in hint.items():
        if key in NO_EFFECT:
            config_hint.check_without_effect(key, value)
            continue
        text = f"{key} = {value!r} in {WHERE}"
        config_hint.check_number(key, value)
        migrated.check_owner(text, key, value)
        if lacks(key, algorithm, generation) and value != algorithm.defaults(generation).get(key, value):
            why = f"{algorithm.name} of generation {generation} does not have this argument. Remove it"
            raise config_hint.refused(key, value, why)
        if algorithm.is_foreign or migrated.acts(key, value, migrated.arguments):
            continue
        if not config_hint.is_written(key, migrated.called, generation, hint):
            raise migrated.has_no(text, key, migrated.arguments)
