"""Results of a run: immutable records, and their JSON (`docs/formats/bench-results.md`).

History of SCHEMA_VERSION:
  1  first.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.agreement import Agreement
from bench.clock import WarmUp
from bench.errors import ResultsError
from bench.stats import Ratio

KIND = "dtopt bench step"
SCHEMA_VERSION = 1
STATUSES = ("ok", "skipped", "failed", "interrupted")
REGIMES = ("cache", "mixed", "dram", "unknown")
VERDICTS = ("faster", "slower", "same", "unclear")


@dataclass(frozen=True)
class Sample:
    """Attributes: group and round it was taken in, from 0; place within the round, from 0; steps; seconds per
    step."""

    group: int
    round: int
    position: int
    steps: int
    seconds: float


@dataclass(frozen=True)
class Roof:
    """In-place memory speed measured among the peers of one case: bytes per second of the best sample."""

    workload: str
    optimizer: str
    name: str
    bytes_per_step: int
    bytes_per_second: float
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class Row:
    """One peer on one case. Times are in seconds, sizes in bytes; what was not measured is None.

    Attributes:
      workload, optimizer, peer, mesh, layout, device, threads, seed: the independent variables.
      status: "ok", "skipped", "failed" or "interrupted"; reason: why it is not "ok".
      parameters, tensors: of the workload; updated: elements updated, replicas on the mesh counted.
      bytes_per_parameter, bytes_per_step: least traffic of a step, and times `updated`.
      working_set, regime: bytes of parameters, gradients and slots, and which memory they live in.
      samples: raw, in the order they were taken; median, mad: of their seconds per step.
      bytes_per_second, roof_fraction: bytes_per_step over the median, and that over the best roof of the
        case.
      ratio: to the baseline; agreement: with the float64 reference.
      prepare_seconds, first_step_seconds: imports and building; the step that traces or compiles.
      warm_up, peak_bytes, versions: of the worker process.
      note: how the peer works, in a word or two; warnings: what makes its times doubtful.
      layout_notes: tensors on which the layout rule could not be kept.
      rerun: the command that measures this row again.
    """

    workload: str
    optimizer: str
    peer: str
    mesh: str
    layout: str
    device: str
    threads: int
    seed: int
    status: str
    reason: str | None
    parameters: int
    tensors: int
    updated: int
    bytes_per_parameter: int
    bytes_per_step: int
    working_set: int
    regime: str
    rerun: str
    samples: tuple[Sample, ...] = ()
    median: float | None = None
    mad: float | None = None
    bytes_per_second: float | None = None
    roof_fraction: float | None = None
    ratio: Ratio | None = None
    agreement: Agreement | None = None
    prepare_seconds: float | None = None
    first_step_seconds: float | None = None
    warm_up: WarmUp | None = None
    peak_bytes: int | None = None
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    note: str = ""
    warnings: tuple[str, ...] = ()
    layout_notes: tuple[str, ...] = ()

    def times(self) -> dict[tuple[int, int], float]:
        """Seconds per step by (group, round)."""
        return {(sample.group, sample.round): sample.seconds for sample in self.samples}


@dataclass(frozen=True)
class Result:
    """A whole run.

    Attributes:
      context: machine, versions, load, command, dates, as `bench.environment` and the runner write them.
      roofs, rows: see there.
      interrupted: whether Ctrl-C ended it early.
    """

    context: Mapping[str, Any]
    roofs: tuple[Roof, ...]
    rows: tuple[Row, ...]
    interrupted: bool = False

    def __post_init__(self) -> None:
        for row in self.rows:
            _check_row(row)
        for roof in self.roofs:
            _check_samples(roof.samples, f"roof {roof.name!r}")

    def to_json(self) -> dict[str, Any]:
        """A document of plain values."""
        return {"kind": KIND, "schema_version": SCHEMA_VERSION, **_plain(dataclasses.asdict(self))}


def _check_row(row: Row) -> None:
    where = f"row {row.peer!r} of {row.workload!r}"
    for value, allowed, what in ((row.status, STATUSES, "status"), (row.regime, REGIMES, "regime")):
        if value not in allowed:
            raise ResultsError(f"{where}: {what} {value!r} is none of {', '.join(allowed)}")
    if row.ratio and row.ratio.verdict not in VERDICTS:
        raise ResultsError(f"{where}: verdict {row.ratio.verdict!r} is none of {', '.join(VERDICTS)}")
    if row.status == "ok" and not (row.samples and row.median):
        raise ResultsError(f"{where}: it is 'ok' but holds no samples or no median")
    if row.status != "ok" and not row.reason:
        raise ResultsError(f"{where}: it is {row.status!r} without a reason")
    _check_samples(row.samples, where)


def _check_samples(samples: tuple[Sample, ...], where: str) -> None:
    for sample in samples:
        if not (math.isfinite(sample.seconds) and sample.seconds > 0 and sample.steps > 0):
            raise ResultsError(f"{where}: a sample of {sample.steps} steps and {sample.seconds} s is impossible")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_json(document: Any) -> Result:
    """Checks a document and reads it; unknown members are ignored. Raises: ResultsError."""
    if not isinstance(document, Mapping) or document.get("kind") != KIND:
        raise ResultsError(f"this is no result of `dtopt bench step`: its kind is not {KIND!r}")
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ResultsError(
            f"schema_version is {version!r} and this dtopt reads {SCHEMA_VERSION}: use the dtopt that wrote the file"
        )
    try:
        return Result(
            context=dict(document["context"]),
            roofs=tuple(_record(Roof, roof) for roof in document["roofs"]),
            rows=tuple(_record(Row, row) for row in document["rows"]),
            interrupted=bool(document["interrupted"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ResultsError(f"the result is damaged: {type(error).__name__}: {error}") from None


_NESTED: dict[str, type] = {"ratio": Ratio, "agreement": Agreement, "warm_up": WarmUp}


def _record(cls: type, members: Mapping[str, Any]) -> Any:
    """A record from its members, nested ones included; members it does not know are dropped."""
    known = {field.name for field in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    for name in known & members.keys():
        value = members[name]
        if name == "samples":
            value = tuple(_record(Sample, sample) for sample in value)
        elif name in _NESTED and value is not None:
            value = _record(_NESTED[name], value)
        elif name == "error" and value is None:
            value = math.nan  # JSON has no word for it
        elif isinstance(value, list):
            value = tuple(value)
        values[name] = value
    return cls(**values)


def load(path: Path) -> Result:
    """Reads a results file. Raises: ResultsError."""
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
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
