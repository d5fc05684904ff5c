"""Results of a run: a context, roofs and rows, and their JSON (`docs/formats/bench-results.md`).

All kinds of results share this document; they differ in their rows. A kind is a dataclass of rows in a file of its
own and a line in KINDS.

History of SCHEMA_VERSION:
  1  first, of the kind "dtopt bench step" only.
  2  other kinds; rows of steps say their options, without which an old reader would take a clipped step for a plain
     one. Version 1 is still read: its rows are steps with the options' defaults.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench import migrate_row, plan_row, roof_row, scale_row, step_row, train_row
from bench.errors import ResultsError
from bench.records import Roof, check_samples, plain, read

SCHEMA_VERSION = 2
KIND_PREFIX = "dtopt bench "


class AnyRow(Protocol):
    """What the rows of every kind have in common; the rest is theirs."""

    @property
    def status(self) -> str: ...

    @property
    def reason(self) -> str | None: ...

    @property
    def rerun(self) -> str: ...

    def check(self) -> None:
        """Raises: ResultsError where the members contradict each other."""


@dataclass(frozen=True)
class Kind:
    """One kind of results.

    Attributes:
      name: the command that writes it, such as "step".
      row: the dataclass of its rows, an AnyRow.
      since: the schema version that brought it.
    """

    name: str
    row: type[Any]
    since: int = SCHEMA_VERSION


KINDS: tuple[Kind, ...] = (
    Kind("step", step_row.Row, since=1),
    Kind("plan", plan_row.Row),
    Kind("roof", roof_row.Row),
    Kind("scale", scale_row.Row),
    Kind("train", train_row.Row),
    Kind("migrate", migrate_row.Row),
)


def kind(name: str) -> Kind:
    """The kind of that name. Raises: ResultsError."""
    for known in KINDS:
        if known.name == name:
            return known
    names = ", ".join(repr(KIND_PREFIX + known.name) for known in KINDS)
    raise ResultsError(f"this is no result that this dtopt knows: its kind is none of {names}")


@dataclass(frozen=True)
class Result:
    """A whole run.

    Attributes:
      context: machine, versions, load, command, dates, as `bench.environment` and the runner write them.
      roofs: memory speeds measured in the same run; rows: records of the kind.
      interrupted: whether Ctrl-C ended it early.
      kind: name of a Kind.
    """

    context: Mapping[str, Any]
    roofs: tuple[Roof, ...]
    rows: tuple[Any, ...]
    interrupted: bool = False
    kind: str = "step"

    def __post_init__(self) -> None:
        expected = kind(self.kind).row
        for row in self.rows:
            if not isinstance(row, expected):
                raise ResultsError(f"a result of the kind {self.kind!r} cannot hold a {type(row).__name__}")
            row.check()
        for roof in self.roofs:
            check_samples(roof.samples, f"roof {roof.name!r}")

    def to_json(self) -> dict[str, Any]:
        """A document of plain values."""
        members = {name: plain(getattr(self, name)) for name in ("context", "roofs", "rows", "interrupted")}
        return {"kind": KIND_PREFIX + self.kind, "schema_version": SCHEMA_VERSION, **members}


def from_json(document: Any) -> Result:
    """Checks a document and reads it; unknown members are ignored. Raises: ResultsError."""
    if not isinstance(document, Mapping) or not isinstance(document.get("kind"), str):
        raise ResultsError("this is no result of `dtopt bench`: it has no kind")
    found = kind(document["kind"].removeprefix(KIND_PREFIX))
    version = document.get("schema_version")
    if version not in range(found.since, SCHEMA_VERSION + 1):
        known = " and ".join(str(number) for number in range(found.since, SCHEMA_VERSION + 1))
        raise ResultsError(f"schema_version is {version!r} and this dtopt reads {known}: use the dtopt that wrote it")
    try:
        return Result(
            context=dict(document["context"]),
            roofs=tuple(read(Roof, roof, f"roofs[{i}]") for i, roof in enumerate(document["roofs"])),
            rows=tuple(read(found.row, row, f"rows[{i}]") for i, row in enumerate(document["rows"])),
            interrupted=bool(document["interrupted"]),
            kind=found.name,
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ResultsError):
            raise
        raise ResultsError(f"the result is damaged: {type(error).__name__}: {error}") from None


def load(path: Path) -> Result:
    """Reads a results file. Raises: ResultsError."""
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, ResultsError):
            raise ResultsError(f"{path}: {error}") from None
        raise ResultsError(f"{path} is not JSON: {error}") from None


def save(result: Result, path: Path) -> None:
    """Writes a results file through a temporary sibling, so that no half of one is ever seen. Raises:
    ResultsError."""
    text = json.dumps(result.to_json(), indent=1, allow_nan=False) + "\n"
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {error.strerror}; name a file in a folder that exists") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)
