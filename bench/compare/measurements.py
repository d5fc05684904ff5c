"""What the rows of each kind of results measured, under names by which two results are paired."""

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
      name: the independent variables, (member, value) each, and what was measured.
      values: in the order they were taken; seconds, or steps if `unit` is that. Infinite for a missed target.
      roofs: times of the roofs in the same rounds, by name; empty without roofs.
      unit: "s" or "steps".
      status, reason: of the row; rerun: its command.
      version: what must not differ under the same name: sizes of the workload, version of the problem.
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
        """None without values, and where half of them or more are misses."""
        middle = median(self.values) if self.values else inf
        return None if isinf(middle) else middle


def measurements(result: Result, apart_from: Collection[str] = ()) -> dict[Name, Measurement]:
    """What a result measured, by name; some members of names may be left out.

    Raises: IncomparableError for plans, which measure nothing.
    """
    reading = KINDS[result.kind].reading
    if reading is None:
        raise IncomparableError(
            f"a result of `dtopt bench {result.kind}` holds nothing measured that could be compared"
        )
    found = {}
    for row in result.rows:
        plain = tuple(pair for pair in _members(row, reading.name) if pair[0] not in apart_from)
        measured = reading.values(row) or {"": ()}
        for what, values in measured.items():
            name = (*plain, *((("measured", what),) if len(measured) > 1 else ()))
            version = _members(row, reading.version)
            roofs: Roofs = {}
            if result.roofs and values:
                values, roofs = _beside_roofs(result, row)
            found[name] = Measurement(name, values, reading.unit, row.status, row.reason, row.rerun, version, roofs)
    return found


def _members(row: Any, names: Sequence[str]) -> Name:
    return tuple((name, getattr(row, name)) for name in names)


def _beside_roofs(result: Result, row: Any) -> tuple[tuple[float, ...], Roofs]:
    """The times of a row of steps, and of the roofs of its case in the same rounds: code that no version of a peer
    changes. All times and no roofs if they share no round."""
    of_case = [roof for roof in result.roofs if _is_of(roof, row)]
    by_round = [{(s.group, s.round): s.seconds for s in roof.samples} for roof in of_case]
    own = {(s.group, s.round): s.seconds for s in row.samples}
    shared = [place for place in own if by_round and all(place in roof for roof in by_round)]
    if not shared:
        return tuple(own.values()), {}
    roofs = {roof.name: tuple(times[place] for place in shared) for roof, times in zip(of_case, by_round, strict=True)}
    return tuple(own[place] for place in shared), roofs


def _is_of(roof: Roof, row: Any) -> bool:
    return (roof.workload, roof.optimizer) == (getattr(row, "workload", None), getattr(row, "optimizer", None))
