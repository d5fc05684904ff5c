"""The constructors of old optimizer classes, release by release, as `signatures.json` records them.

The table is made by `tests/fixtures/code/record_signatures.py` with the releases installed. It serves to give
positional arguments their names, and to know which arguments a release had. Defaults are those of
`migrate.algorithms`, and the tests hold the two against each other; only where an algorithm's default changed within
a generation does the table decide.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from packaging.version import Version

NOTHING = object()
"""The default of a parameter that has none."""
KEYWORDS: dict[str, tuple[str, ...]] = {
    "keras1": ("clipnorm", "clipvalue"),
    "keras2": ("clipnorm", "clipvalue"),
    "keras2.3": ("clipnorm", "clipvalue", "lr", "epsilon", "decay", "schedule_decay"),
    "optimizer_v1": ("clipnorm", "clipvalue"),
    "experimental": ("mesh", "decay"),
    "optimizer": ("mesh",),
    "optimizer_v2": ("clipnorm", "clipvalue", "global_clipnorm", "lr", "decay", "schedule_decay"),
}
"""What `**kwargs` may hold, by generation; `schedule_decay` is Nadam's."""


@dataclass(frozen=True)
class Signature:
    """Parameters in order, with defaults; `keywords` are those that `**kwargs` takes."""

    parameters: tuple[tuple[str, Any], ...]
    positional: int
    keywords: tuple[str, ...] = ()

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
    """Whether a release is older than every one that is recorded; then the oldest stands for it."""
    first = min(Version(rows[0][0]) for rows in table()[module].values())
    return version is not None and Version(version) < first


@lru_cache(maxsize=4096)
def of(module: str, name: str, version: str | None, generation: str | None = None) -> Signature | None:
    """The constructor of a class in a release, or in the last one that is known; None if there is no such class."""
    rows: Sequence[tuple[str, list[list[Any]]]] = table().get(module, {}).get(name, ())
    if not rows:
        return None
    fitting = [row for first, row in rows if version is None or Version(first) <= Version(version)]
    if not fitting and not _before_all_records(module, version):
        return None
    row = fitting[-1] if fitting else rows[0][1]
    names = [parameter[0] for parameter in row]
    positional = names.index("*") if "*" in names else len([n for n in names if n != "**"])
    parameters = tuple((p[0], p[1] if len(p) > 1 else NOTHING) for p in row if p[0] not in ("*", "**"))
    return Signature(parameters, positional, KEYWORDS.get(generation or "", ()) if "**" in names else ())
