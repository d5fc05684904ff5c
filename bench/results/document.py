"""Results of a run: a context, memory bandwidth limits and rows, and their JSON (`docs/formats/bench-results.md`).

All kinds of results share this document and differ in their rows. `bench.kinds` lists the kinds, which this module
does not know.

History of SCHEMA_VERSION:
  1  first, only of the kind "dtopt bench step".
  2  other kinds; rows of steps store their options. Without these an old reader would treat a clipped step as a plain
     one. Version 1 is still read: its rows are steps with the options' defaults.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.errors import ResultsError
from bench.results import store
from bench.results.records import Roof, check_samples, plain, read

SCHEMA_VERSION = 2
KIND_PREFIX = "dtopt bench "


class AnyRow(Protocol):
    """The common members of rows of every kind."""

    @property
    def status(self) -> str: ...

    @property
    def reason(self) -> str | None: ...

    @property
    def rerun(self) -> str: ...

    def check(self) -> None:
        """Check that the members agree with each other.

        Raises: ResultsError if the members contradict each other.
        """


class RowKind(Protocol):
    """The parts of a kind that reading a document needs: see `bench.kinds.Kind`."""

    @property
    def row(self) -> type[Any]: ...

    @property
    def since(self) -> int: ...


@dataclass(frozen=True)
class Result:
    """A whole run.

    Attributes:
      context: machine, versions, load, command, dates, as `bench.measuring.environment` writes them.
      roofs: memory speeds measured in the same run; rows: records of the kind, each an AnyRow.
      interrupted: whether Ctrl-C ended it early.
      kind: name of a kind, such as "step".
    """

    context: Mapping[str, Any]
    roofs: tuple[Roof, ...]
    rows: tuple[Any, ...]
    interrupted: bool = False
    kind: str = "step"

    def __post_init__(self) -> None:
        for row in self.rows:
            row.check()
        for roof in self.roofs:
            check_samples(roof.samples, f"roof {roof.name!r}")

    def to_json(self) -> dict[str, Any]:
        """Return a document of plain values."""
        members = {name: plain(getattr(self, name)) for name in ("context", "roofs", "rows", "interrupted")}
        return {"kind": KIND_PREFIX + self.kind, "schema_version": SCHEMA_VERSION, **members}


def from_json(document: Any, kinds: Mapping[str, RowKind]) -> Result:
    """Check and read a document of one of these kinds; ignore unknown members. Raises: ResultsError."""
    if not isinstance(document, Mapping) or not isinstance(document.get("kind"), str):
        raise ResultsError("this is not a result of `dtopt bench`: it has no kind")
    name = document["kind"].removeprefix(KIND_PREFIX)
    if name not in kinds:
        names = ", ".join(repr(KIND_PREFIX + known) for known in kinds)
        raise ResultsError(f"this dtopt does not know the kind of this result; it knows {names}")
    version, since = document.get("schema_version"), kinds[name].since
    if version not in range(since, SCHEMA_VERSION + 1):
        known = " and ".join(str(number) for number in range(since, SCHEMA_VERSION + 1))
        raise ResultsError(f"schema_version is {version!r} and this dtopt reads {known}: use the dtopt that wrote it")
    members = ("context", "roofs", "rows", "interrupted")
    missing = [member for member in members if member not in document]
    if missing or not isinstance(document["context"], Mapping):
        raise ResultsError(f"the result is damaged: it has no {' and no '.join(missing) or 'object named context'}")
    return Result(
        context=dict(document["context"]),
        roofs=read(tuple[Roof, ...], document["roofs"], "roofs"),
        rows=read(tuple[kinds[name].row, ...], document["rows"], "rows"),  # type: ignore[misc]
        interrupted=bool(document["interrupted"]),
        kind=name,
    )


def load(path: Path, kinds: Mapping[str, RowKind]) -> Result:
    """Read a results file, or the newest result of a name. Raises: ResultsError."""
    path = store.newest(path) if store.is_name(path) else path
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")), kinds)
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, ResultsError):
            raise ResultsError(f"{path}: {error}") from None
        raise ResultsError(f"{path} is not JSON: {error}") from None


def save(result: Result, path: Path) -> None:
    """Write a results file, or another one under a name, through a temporary file next to it.

    So no reader ever sees half a file. Raises: ResultsError.
    """
    path = store.place(path, result.context) if store.is_name(path) else path
    write(json.dumps(result.to_json(), indent=1, allow_nan=False) + "\n", path)


def write(text: str, path: Path) -> None:
    """Write any file that way, with the permissions of a new file. Raises: ResultsError."""
    temporary = _sibling(path)
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)


def require_writable(path: Path) -> None:
    """Raise ResultsError for a path that cannot be written."""
    if store.is_name(path):
        store.require_writable(path)
        return
    if path.is_dir():
        raise ResultsError(f"cannot write {path}: it is a folder; name a file")
    temporary = _sibling(path)
    try:
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise _unwritable(path, error) from None
    temporary.unlink()


def _sibling(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _unwritable(path: Path, error: OSError) -> ResultsError:
    return ResultsError(f"cannot write {path}: {error.strerror}; name a file in a folder that exists")
