"""The hints of a person put into what a source says, and the question for those that are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from migrate import generations, matching
from migrate.errors import MissingHintError
from migrate.state import Stored, StoredVariable
from optim.errors import HyperparameterError, MismatchError

CONFIG_EXAMPLE = '{"class_name": "Adam", "config": {"learning_rate": 0.001, "beta_1": 0.9, "epsilon": 1e-07}}'


def with_hints(
    stored: Stored,
    optimizer_config: Mapping[str, Any] | None,
    variables: Sequence[Mapping[str, Any]] | None,
    generation: str | None,
) -> tuple[Stored, list[str]]:
    """The source with the hints put in, complaining of what is still missing."""
    warnings: list[str] = []
    if optimizer_config is not None:
        stored = replace(stored, optimizer_config=_checked_config(optimizer_config))
    if generation is not None:
        generations.check(generation)
        if stored.generation not in (None, generation):
            warnings.append(
                f"the source looks like generation {stored.generation}; --generation says {generation}, and is followed"
            )
        stored = replace(stored, generation=generation)
    if variables is not None:
        stored = replace(stored, variables=_hinted_variables(stored, variables), layers=None)
    missing = _missing(stored)
    if missing:
        raise MissingHintError(f"the source ({stored.format}) does not say everything; add {'; '.join(missing)}")
    return stored, warnings


def _missing(stored: Stored) -> list[str]:
    missing = []
    if stored.optimizer_config is None:
        missing.append(f"--optimizer-config FILE with the optimizer's class and config, as JSON: {CONFIG_EXAMPLE}")
    if stored.generation is None:
        missing.append(f"--generation NAME, what wrote it: one of {', '.join(generations.GENERATIONS)}")
    if not stored.variables and stored.weights is not None:
        missing.append(
            '--variables FILE with the trained variables in order, as JSON: [{"name": "dense/kernel",'
            ' "shape": [5, 7]}, ...]'
        )
    return missing


def _checked_config(given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(given.get("class_name"), str) or not isinstance(given.get("config"), Mapping):
        raise HyperparameterError(
            f"--optimizer-config needs the members class_name and config, for example {CONFIG_EXAMPLE}"
        )
    return {"class_name": given["class_name"], "config": dict(given["config"])}


def _hinted_variables(stored: Stored, given: Sequence[Mapping[str, Any]]) -> tuple[StoredVariable, ...]:
    """The variables of the hint, with the source's own values where it has a variable of that name."""
    own = {matching.plain(v.name): v for v in stored.variables}
    rows = []
    for entry in given:
        try:
            name, shape = matching.plain(str(entry["name"])), tuple(int(n) for n in entry["shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise HyperparameterError(
                f'--variables needs a list of {{"name": ..., "shape": [...]}} objects; {entry!r} is not one'
            ) from error
        known = own.pop(name, None)
        if known is not None and known.shape != shape:
            raise MismatchError(
                f"--variables gives {name!r} the shape {list(shape)}, the source has {list(known.shape)}"
            )
        rows.append(
            replace(known, trainable=True)
            if known
            else StoredVariable(name, None, shape, str(entry.get("dtype", "float32")), True)
        )
    return (*_distinct(rows), *(replace(v, trainable=False) for v in own.values()))


def _distinct(rows: Sequence[StoredVariable]) -> list[StoredVariable]:
    """Variables of one name, as nested models have them, numbered as TensorFlow would: `a`, `a_1`, ..."""
    taken = {row.name for row in rows}
    seen: set[str] = set()
    result = []
    for row in rows:
        name, number = row.name, 1
        while name in seen or (name != row.name and name in taken):
            name, number = f"{row.name}_{number}", number + 1
        seen.add(name)
        result.append(replace(row, name=name))
    return result
