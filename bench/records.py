"""Immutable records as JSON and back, checked against their own type hints, and the records that all kinds of
results share."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, Union

from bench.errors import ResultsError

STATUSES = ("ok", "skipped", "failed", "interrupted")

_Record = TypeVar("_Record")


@dataclass(frozen=True)
class Sample:
    """Attributes: group and round it was taken in, from 0; place within the round, from 0; steps; seconds per
    step.

    Further, None where not measured: `latency`, median seconds of single steps, each waited for; `step_share`, the
      step's part of forward, backward and step; `resident_bytes` of the process after the sample.
    """

    group: int
    round: int
    position: int
    steps: int
    seconds: float
    latency: float | None = None
    step_share: float | None = None
    resident_bytes: int | None = None


@dataclass(frozen=True)
class Roof:
    """In-place memory speed measured among the peers of one case: bytes per second of the best sample."""

    workload: str
    optimizer: str
    name: str
    bytes_per_step: int
    bytes_per_second: float
    samples: tuple[Sample, ...]


def check_status(status: str, reason: str | None, where: str) -> None:
    """Raises: ResultsError for an unknown status, or one that is not "ok" without a reason."""
    check_word(status, STATUSES, f"{where}: status")
    if status != "ok" and not reason:
        raise ResultsError(f"{where}: it is {status!r} without a reason")


def check_word(word: str, allowed: tuple[str, ...], what: str) -> None:
    """Raises: ResultsError where a word is none of those allowed."""
    if word not in allowed:
        raise ResultsError(f"{what} {word!r} is none of {', '.join(allowed)}")


def check_samples(samples: tuple[Sample, ...], where: str) -> None:
    """Raises: ResultsError for times and steps that cannot be."""
    for sample in samples:
        latency = sample.seconds if sample.latency is None else sample.latency
        if not (all(math.isfinite(t) and t > 0 for t in (sample.seconds, latency)) and sample.steps > 0):
            raise ResultsError(f"{where}: a sample of {sample.steps} steps and {sample.seconds} s is impossible")


def plain(value: Any) -> Any:
    """Records, mappings and tuples as JSON values; what is not finite as None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(record: type[_Record], members: Any, where: str) -> _Record:
    """A record from its JSON members. Those it does not know are dropped, missing ones take their defaults.

    Args:
      record: a dataclass whose hints are made of str, bool, int, float, dataclasses, Mapping, `tuple[X, ...]`, Any and
        `| None`. A float that is null in JSON, and not None by its hint, is read as NaN.
      where: for messages, such as `rows[3]`.

    Raises: ResultsError, which names the member.
    """
    if not isinstance(members, Mapping):
        raise ResultsError(f"the result is damaged: {where} is no object")
    hints = typing.get_type_hints(record)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        if field.name in members:
            values[field.name] = _value(hints[field.name], members[field.name], f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ResultsError(f"the result is damaged: {where} has no {field.name!r}")
    return record(**values)


def _value(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in parts:
            return None
        (hint,) = (part for part in parts if part is not type(None))
        return _value(hint, value, where)
    if dataclasses.is_dataclass(hint):
        return read(hint, value, where)  # type: ignore[arg-type]
    if origin is tuple and isinstance(value, list):
        return tuple(_value(parts[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if isinstance(hint, type) and hint in (str, bool, int, float):
        return _scalar(hint, value, where)
    if origin is not tuple and isinstance(value, Mapping):
        inner = parts[1] if parts else Any
        return {str(key): _value(inner, item, f"{where}.{key}") for key, item in value.items()}
    raise ResultsError(f"the result is damaged: {where} is {_shown(value)}")


def _scalar(hint: type, value: Any, where: str) -> Any:
    if hint is float and value is None:
        return math.nan  # JSON has no word for it
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise ResultsError(f"the result is damaged: {where} is {_shown(value)} where {hint.__name__} is expected")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
