"""The constructors of old optimizer classes, release by release, as recorded in `signatures.json`.

`tests/fixtures/code/read_signatures.py` writes the table from the sources of every minor release, and
`record_signatures.py` from installed releases. The table names positional arguments, and shows which arguments a
release had. Defaults are those of `migrate.algorithms`, and tests compare the two; only if an algorithm's default
changed within a generation is the table's used.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from packaging.version import Version

from migrate.generations import traits
from migrate.releases import modules

NOTHING = object()
"""The default of a parameter without a default."""

ADDONS = "tensorflow_addons.optimizers"
ADDONS_NEXT_TO = (
    ("0.5.0", "2.0", "2.1"),
    ("0.7.0", "2.1", "2.3"),
    ("0.10.0", "2.2", "2.3"),
    ("0.11.0", "2.2", "2.4"),
    ("0.12.0", "2.3", "2.5"),
    ("0.13.0", "2.3", "2.6"),
    ("0.14.0", "2.4", "2.7"),
    ("0.15.0", "2.5", "2.8"),
    ("0.16.1", "2.6", "2.9"),
    ("0.17.0", "2.7", "2.10"),
    ("0.18.0", "2.8", "2.11"),
    ("0.19.0", "2.9", "2.12"),
    ("0.20.0", "2.10", "2.13"),
    ("0.21.0", "2.11", "2.14"),
    ("0.22.0", "2.12", "2.15"),
    ("0.23.0", "2.13", "2.16"),
)
"""Releases of TensorFlow Addons, and the TensorFlow releases that each accepts, from the first up to before the second:
`tensorflow_addons/version.py` and `utils/ensure_tf_install.py` of each, before 0.9 the requirements of its wheel."""


@dataclass(frozen=True)
class Signature:
    """Parameters in order, with defaults; `keywords` are those in `**kwargs`.

    `since`: the first release of TensorFlow Addons with this constructor, if the class had several.
    """

    parameters: tuple[tuple[str, Any], ...]
    positional: int
    keywords: tuple[str, ...] = ()
    since: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.parameters)

    def takes(self, name: str) -> bool:
        return name in self.names or name in self.keywords

    def default(self, name: str) -> Any:
        return dict(self.parameters).get(name, NOTHING)


@lru_cache(maxsize=1)
def table() -> dict[str, dict[str, list[tuple[str, list[list[Any]]]]]]:
    return json.loads(files("migrate.code").joinpath("signatures.json").read_text(encoding="utf-8"))


def classes(module: str) -> frozenset[str]:
    """Names of a module's optimizer classes, in any release."""
    return frozenset(table().get(module, {}))


@lru_cache(maxsize=256)
def _before_all_records(module: str, version: str | None) -> bool:
    """Whether a release is older than every recorded one; then the oldest represents it."""
    first = min(Version(rows[0][0]) for rows in table()[module].values())
    return version is not None and Version(version) < first


@lru_cache(maxsize=4096)
def of(module: str, name: str, version: str | None, generation: str | None = None) -> Signature | None:
    """The constructor of a class in a release, or in the last known one; None if the class is missing."""
    rows: Sequence[tuple[str, list[list[Any]]]] = table().get(module, {}).get(name, ())
    if not rows:
        return None
    fitting = [row for first, row in rows if version is None or Version(first) <= Version(version)]
    if not fitting and not _before_all_records(module, version):
        return None
    return _signature(fitting[-1] if fitting else rows[0][1], generation)


@lru_cache(maxsize=4096)
def of_addons(name: str, tensorflow: str | None) -> tuple[Signature, ...]:
    """The constructors of a class in the releases of TensorFlow Addons for a TensorFlow, the last one first.

    All of them if `tensorflow` is None or no release of Addons accepts that version.
    """
    rows: Sequence[tuple[str, list[list[Any]]]] = table().get(ADDONS, {}).get(name, ())
    starts = [Version(first) for first, _ in rows]
    fitting = [Version(first) for first, low, high in ADDONS_NEXT_TO if _is_between(tensorflow, low, high)]
    constructors = []
    for index, (first, row) in enumerate(rows):
        end = starts[index + 1] if index + 1 < len(starts) else None
        if not fitting or any(starts[index] <= version and (end is None or version < end) for version in fitting):
            constructors.append(replace(_signature(row, modules.ALONE[ADDONS]), since=first if len(rows) > 1 else ""))
    return tuple(reversed(constructors))


def has_addons(tensorflow: str) -> bool:
    """Whether a release of Addons accepts a TensorFlow."""
    return any(_is_between(tensorflow, low, high) for _, low, high in ADDONS_NEXT_TO)


def _is_between(version: str | None, low: str, high: str) -> bool:
    return version is not None and Version(low) <= Version(version) < Version(high)


def _signature(row: list[list[Any]], generation: str | None) -> Signature:
    names = [parameter[0] for parameter in row]
    positional = names.index("*") if "*" in names else len([n for n in names if n != "**"])
    parameters = tuple((p[0], p[1] if len(p) > 1 else NOTHING) for p in row if p[0] not in ("*", "**"))
    return Signature(parameters, positional, traits(generation).keywords if "**" in names else ())
