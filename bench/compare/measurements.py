"""Read the measurements of each kind of results, under names by which two results are paired."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isinf
from statistics import median
from typing import Any

from bench.compare.statistics import Series
from bench.errors import IncomparableError
from bench.kinds import KINDS
from bench.results.document import Result
from bench.results.records import Roof

Name = tuple[tuple[str, Any], ...]
Roofs = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Measurement:
    """One quantity of one row.

    Attributes:
      name: the independent variables, (member, value) each, and the name of the quantity.
      values: in the order of measurement; seconds, or steps if `unit` is "steps". Infinite for a missed target.
      roofs: times of the memory bandwidth limits in the same rounds, by name; empty without limits.
      unit: "s" or "steps".
      status, reason: of the row; rerun: its command.
      version: values that must agree under the same name: sizes of the workload, version of the problem.
    """

    name: Name
    values: tuple[float, ...]
    unit: str
    status: str
    reason: str | None
    rerun: str
    version: Name
    roofs: Roofs = field(default_factory=dict)

    @property
    def series(self) -> Series:
        return Series(self.values, self.roofs)

    @property
    def misses(self) -> int:
        return sum(isinf(value) for value in self.values)

    @property
    def median(self) -> float | None:
        """Median; None without values, and if half of them or more are misses."""
        middle = median(self.values) if self.values else inf
        return None if isinf(middle) else middle


def measurements(result: Result, apart_from: Collection[str] = ()) -> dict[Name, Measurement]:
    """Return the measurements of a result by name, optionally without some members of the names.

    Raises: IncomparableError for plans, which measure nothing.
    """
    reading = KINDS[result.kind].reading
    if reading is None:
        raise IncomparableError(
            f"a result of `dtopt bench {result.kind}` holds nothing measured that could be compared"
        )
    by_name = {}
    for row in result.rows:
        plain = tuple(pair for pair in _members(row, reading.name) if pair[0] not in apart_from)
        measured = reading.values(row) or {"": ()}
        for what, values in measured.items():
            name = (*plain, *((("measured", what),) if len(measured) > 1 else ()))
            version = _members(row, reading.version)
            roofs: Roofs = {}
            if result.roofs and values:
                values, roofs = _beside_roofs(result, row)
            by_name[name] = Measurement(name, values, reading.unit, row.status, row.reason, row.rerun, version, roofs)
    return by_name


def _members(row: Any, names: Sequence[str]) -> Name:
    return tuple((name, getattr(row, name)) for name in names)


def _beside_roofs(result: Result, row: Any) -> tuple[tuple[float, ...], Roofs]:
    """Return the times of a row of steps, and of its case's memory bandwidth limits in the same rounds.

    No version of a peer changes the code of the limits. If they share no round, return all times and no limits.
    """
    of_case = [roof for roof in result.roofs if _is_of(roof, row)]
    by_round = [{(s.group, s.round): s.seconds for s in roof.samples} for roof in of_case]
    row_seconds = {(s.group, s.round): s.seconds for s in row.samples}
    shared = [place for place in row_seconds if by_round and all(place in roof for roof in by_round)]
    if not shared:
        return tuple(row_seconds.values()), {}
    roofs = {roof.name: tuple(times[place] for place in shared) for roof, times in zip(of_case, by_round, strict=True)}
    return tuple(row_seconds[place] for place in shared), roofs


def _is_of(roof: Roof, row: Any) -> bool:
    return (roof.workload, roof.optimizer) == (getattr(row, "workload", None), getattr(row, "optimizer", None))
