"""Choose variables by patterns of names, and find patterns that choose given variables."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from migrate.bytes.messages import some
from optim.errors import HyperparameterError

SHOWN = 8
WEIGHTS_ALONE = (
    "to take the model's weights alone, add --weights-only to `dtopt migrate checkpoint`, in Python weights_only=True"
)
OF_NEW_CLASS = f"{WEIGHTS_ALONE}, and name the class of the new optimizer: --set class_name=Adam"
"""For sources that do not name a class."""


def chosen(option: str, patterns: Iterable[str], names: Collection[str]) -> tuple[str, ...]:
    """Return the names in which any of the patterns is found. Raises HyperparameterError."""
    selection: dict[str, None] = {}
    for pattern in patterns:
        try:
            matches = [name for name in names if re.search(pattern, name)]
        except re.error as error:
            raise HyperparameterError(
                f"{option}: {pattern!r} is not a regular expression ({error}); write a part of the variable's name"
            ) from error
        if not matches:
            raise HyperparameterError(
                f"{option}: {pattern!r} matches no variable; the variables are {some(sorted(names), SHOWN)}"
            )
        selection |= dict.fromkeys(matches)
    return tuple(name for name in names if name in selection)


def finds(pattern: str, name: str) -> bool:
    """Return whether a pattern is found in a name. The text may not be a valid pattern yet."""
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False


def patterns_for(names: Iterable[str], others: Collection[str]) -> list[str]:
    """Return patterns that choose these names and no others: the layer's pattern if all of a layer is chosen."""
    patterns: dict[str, None] = {}
    for name in names:
        split = re.match(r"(.*[/.])?([^/.]+[/.])([^/.]+)$", name)
        folder, layer, last = (re.escape(part or "") for part in split.groups()) if split else ("", "", "")
        wide = (layer, f"^{folder}{layer}", f"{layer}{last}$") if split else ()
        fitting = (pattern for pattern in wide if not any(finds(pattern, other) for other in others))
        patterns[next(fitting, f"^{re.escape(name)}$")] = None
    return list(patterns)


def typed(option: str, names: Iterable[str], all_names: Iterable[str]) -> str:
    """Return the command-line options that choose these names."""
    names = list(names)
    others = [name for name in all_names if name not in names]
    return " ".join(f"--{option} '{pattern}'" for pattern in patterns_for(names, others))
