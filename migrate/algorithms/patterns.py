"""Regular expressions that choose variables, with the same syntax for all options that take them.

`re.search` looks for a pattern in a variable's name, with and without the `:0` that TensorFlow appends. A full name
chooses only that variable. Some releases matched patterns with other names than `optim` does.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any

from migrate.algorithms.addons import EXCLUDED
from migrate.algorithms.arguments import Arguments
from migrate.algorithms.keras_config import LAZY_ROWS
from migrate.algorithms.lamb import NOT_ADAPTED
from migrate.bytes.messages import some
from migrate.claims import COMPUTED, SET, confirming
from optim.errors import HyperparameterError

UNTRAINED = "untrained"
"""An override: the variables that the optimizer did not train."""
SEARCHED = (EXCLUDED, NOT_ADAPTED, LAZY_ROWS)
"""Options that `migrate` passes to `optim`, which searches their patterns."""
FEW = 4
"""Up to this many names are shown in full; for more, `migrate` shows patterns."""


def chosen(key: str, patterns: Any, names: Sequence[str]) -> list[list[str]]:
    """Return the variables that each pattern chooses.

    Args:
      key: the option, for messages.
      patterns: the regular expressions of the option.
      names: of all variables.

    Raises:
      HyperparameterError: `patterns` is not a list of regular expressions.
    """
    if not isinstance(patterns, (list, tuple)) or not all(isinstance(pattern, str) for pattern in patterns):
        raise HyperparameterError(f"{key} must be a list of regular expressions, got {patterns!r}")
    return [_chosen(key, pattern, names) for pattern in patterns]


def nothing(key: str, patterns: Sequence[str], names: Sequence[str]) -> HyperparameterError:
    """Return the error for patterns that choose no variable."""
    how = (
        f"give patterns of their names in the source, such as {some(names, FEW)}"
        if names
        else "the source does not contain names"
    )
    return HyperparameterError(
        f"{key}: no variable matches {some(list(map(repr, patterns)))}; {how}, or remove the option"
    )


def _chosen(key: str, pattern: str, names: Sequence[str]) -> list[str]:
    exact = [name for name in names if pattern in (name, _plain(name))]
    try:
        return exact or [name for name in names if _is_found(pattern, name)]
    except re.error as error:
        raise HyperparameterError(f"{key}: {pattern!r} is no regular expression: {error}") from error


def _plain(name: str) -> str:
    return name.removesuffix(":0")


def _is_found(pattern: str, name: str) -> bool:
    return bool(re.search(pattern, _plain(name)) or re.search(pattern, f"{_plain(name)}:0"))


def in_overrides(overrides: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return overrides whose patterns choose the same variables wherever they are searched.

    Full names become anchored patterns, and `untrained` becomes a list of names.

    Raises:
      HyperparameterError: as `chosen`, or patterns choose nothing.
    """
    done = dict(overrides)
    for key in (UNTRAINED, *SEARCHED):
        if not names or not done.get(key):
            continue
        matches = chosen(key, done[key], names)
        idle = [pattern for pattern, one in zip(done[key], matches, strict=True) if not one]
        if idle and (key == UNTRAINED or len(idle) == len(matches)):  # others may name layers that a model lacks
            raise nothing(key, idle, names)
        if key == UNTRAINED:
            done[key] = list(dict.fromkeys(name for one in matches for name in one))
        else:
            done[key] = [_anchored(p, one, names) for p, one in zip(done[key], matches, strict=True)]
    return done


def _anchored(pattern: str, matches: Sequence[str], names: Sequence[str]) -> str:
    is_same = not matches or [name for name in names if _is_found(pattern, name)] == list(matches)
    return pattern if is_same else f"^{re.escape(_plain(matches[0]))}(:0)?$"


def naming(key: str, variables: Sequence[str], names: Sequence[str]) -> str:
    """Return the option that chooses exactly these variables: by their names, or by fewer patterns."""
    prefixes = (
        _prefixes(sorted(variables), names, set(names) - set(variables)) if len(variables) > FEW else list(variables)
    )
    return confirming(key, prefixes if len(prefixes) < len(variables) else list(variables))


def _prefixes(variables: Sequence[str], names: Sequence[str], others: Collection[str]) -> list[str]:
    """Return the fewest prefixes that choose these names and no others; a full name for a name without companions.

    Args:
      variables: in alphabetical order.
    """
    if len(variables) == 1:
        return list(variables)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(variables[0], variables[-1], strict=False))
    prefix = "".join(letter for letter, _ in same)
    for pattern in (re.escape(prefix), f"^{re.escape(prefix)}"):
        matches = set(_chosen("", pattern, names))
        if prefix and matches.issuperset(variables) and matches.isdisjoint(others):
            return [pattern]
    groups: dict[str, list[str]] = {}
    for name in variables:
        groups.setdefault(name[len(prefix) : len(prefix) + 1], []).append(name)
    return [pattern for group in groups.values() for pattern in _prefixes(group, names, others)]


def check(arguments: Arguments, names: Sequence[str]) -> None:
    """Warn about patterns that choose different variables here than in the source.

    For example, `bias$` never matched `dense/bias:0`, the name that the release compared. A source that knows variables
    by their places in an object graph does not store their names.

    Args:
      names: of the trained variables.

    Raises:
      HyperparameterError: patterns that the user set choose no trained variable.
    """
    plain = list(map(_plain, names))
    for key in (EXCLUDED, NOT_ADAPTED):
        patterns = arguments.values.get(key) or ()
        if not patterns:
            continue
        matches = [n for n in plain if any(_is_found(p, n) for p in patterns)]
        if key in arguments.origins and arguments.origins[key].kind == SET:
            if plain and not matches:
                raise nothing(key, patterns, plain)
            continue
        other = [n for n in plain if any(bool(re.search(p, n)) != bool(re.search(p, f"{n}:0")) for p in patterns)]
        unnamed = [n for n in plain if "/" not in n and "." in n]
        confirm = confirming(key, [p for p in patterns if any(_is_found(p, n) for n in plain)])
        if other:
            text = f"{key}: its patterns match {some(other, 3)} with or without the :0 that names had there"
            arguments.doubt(key, text, COMPUTED, confirm)
        elif unnamed:
            text = (
                f"{key}: patterns match by name, but the source does not contain the name that {some(unnamed, 3)} had"
            )
            arguments.doubt(key, text, COMPUTED, confirm)


def choose_alike(one: Any, other: Any, names: Sequence[str]) -> bool:
    """Return whether two lists of patterns choose the same of these variables."""
    if not all(isinstance(patterns, list) and all(isinstance(p, str) for p in patterns) for patterns in (one, other)):
        return False
    try:
        return all(any(re.search(p, n) for p in one) == any(re.search(p, n) for p in other) for n in names)
    except re.error:
        return False
