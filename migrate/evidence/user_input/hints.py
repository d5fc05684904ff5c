"""Check all that the user may specify about a source, before a file is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, TypedDict

import numpy as np

from migrate.algorithms import foreign
from migrate.algorithms.repeated_rows import REPEATED
from migrate.claims import confirming
from migrate.errors import ContradictionError
from migrate.evidence.slot_bounds import STILL
from migrate.evidence.user_input import argument_types, settings
from migrate.state import CHANGED, GATHERED
from optim.errors import HyperparameterError, UnsupportedError

Variables = Sequence[Mapping[str, Any] | str]
"""The trained variables in the optimizer's order: name and shape of one, or a pattern of names in the source."""


class SourceHints(TypedDict, total=False):
    """What the user may specify about a source, without its variables; `migrate.read` explains each."""

    format: str
    optimizer_config: Mapping[str, Any] | None
    generation: str | None
    optimizer_path: str | None
    overrides: Mapping[str, Any] | None


class Hints(SourceHints, total=False):
    """All that the user may specify about a source."""

    variables: Variables | None


OPTIONS = {
    "optimizer_config": "--optimizer-config",
    "variables": "--variables",
    "generation": "--generation",
    "overrides": "--set",
}
OF_SLOTS = ("slot_order", STILL, CHANGED, GATHERED, REPEATED, foreign.OWN_RULE)
"""Settings for slots or steps of the source."""


def check_hints(hints: Mapping[str, Any], *, weights_only: bool = False) -> None:
    """Check form and agreement of all values.

    Args:
      hints: the keywords of `migrate.read`.
      weights_only: whether the optimizer is reset.

    Raises:
      TypeError: a keyword that is not a hint. ArgumentError: a value of another type.
      ContradictionError: two values disagree. HyperparameterError: a value that nothing would use.
    """
    known = Hints.__annotations__.keys() | SourceHints.__annotations__.keys()
    for name in hints:
        if name not in known:
            raise TypeError(f"no hint is called {name!r}; there are {', '.join(sorted(known))}")
    argument_types.check(**hints)
    overrides = settings.with_one_rate(hints.get("overrides") or {})
    checked_config(hints.get("optimizer_config"))
    variables, generation = hints.get("variables"), hints.get("generation")
    if variables is not None and not variables:
        raise HyperparameterError("--variables names no variable: name all that the optimizer trains, or leave it out")
    if generation is not None and str(overrides.get("generation", generation)) != generation:
        raise ContradictionError(
            f"--generation {generation} and {confirming('generation', overrides['generation'])} disagree: remove one"
            " of them"
        )
    if not isinstance(overrides.get(foreign.OWN_RULE, False), bool):
        raise HyperparameterError(f"{foreign.OWN_RULE} is {overrides[foreign.OWN_RULE]!r}; it takes true or false")
    if weights_only:
        _check_reset(overrides)


def _check_reset(overrides: Mapping[str, Any]) -> None:
    """Refuse settings of slots and steps, which a new optimizer does not have."""
    idle = [key for key in OF_SLOTS if key in overrides]
    idle += ["iterations"] if overrides.get("iterations", 0) != 0 else []
    if idle:
        raise HyperparameterError(
            f"{confirming(idle[0], overrides[idle[0]])} has no effect with --weights-only, which resets the optimizer:"
            " remove one of them"
        )


def check_unused(path: str, hints: Mapping[str, Any]) -> None:
    """Refuse hints for a checkpoint of dtopt, which has all settings. Raises HyperparameterError."""
    unused = [option for name, option in OPTIONS.items() if hints.get(name)]
    if unused:
        raise HyperparameterError(
            f"{path} was written by dtopt and already has all settings. Remove {', '.join(unused)}, and change"
            " settings after loading"
        )


CONFIG_FORM = '{"class_name": "CLASS", "config": {"learning_rate": NUMBER, ...}}'


def checked_config(hint: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Check the form of --optimizer-config, and return it as JSON. A result of `get_config()` names no class.

    Raises:
      HyperparameterError: it has another form. UnsupportedError: it holds a number that no float holds.
    """
    if hint is None:
        return None
    if hint and not {"class_name", "config"} & hint.keys():
        return {"class_name": "", "config": _as_json(hint)}
    if not isinstance(hint.get("class_name"), str) or not isinstance(hint.get("config"), Mapping):
        raise HyperparameterError(f"--optimizer-config needs the members class_name and config: {CONFIG_FORM}")
    return {**hint, "class_name": hint["class_name"], "config": _as_json(hint["config"])}


def _as_json(value: Any) -> Any:
    """Return a config as a file would hold it.

    `get_config()` of tf_keras gives numpy's values, which `json.dump` writes only as text (`default=str`).
    """
    if isinstance(value, Mapping):
        return {key: member if key == "name" else _as_json(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(member) for member in value]
    if isinstance(value, str):
        value = SWITCHES.get(value, _as_number(value))
    if isinstance(value, int) and value.bit_length() > LONGEST:
        raise UnsupportedError(
            f"--optimizer-config holds an integer of {value.bit_length()} bits, and numbers of optimizers are floats;"
            " correct it"
        )
    return value.item() if isinstance(value, np.generic) else value


LONGEST = 1000
"""The most bits of an integer that every float64 holds."""
SWITCHES = {"True": True, "False": False}


def _as_number(text: str) -> int | float | str:
    """Return the finite number that a text contains, or the text."""
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if isfinite(number) else text
    return text
