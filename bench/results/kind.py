"""What a kind of results says of itself, so that reading, comparing and showing it need no list of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.results.document import SCHEMA_VERSION

if TYPE_CHECKING:
    from bench.page.section import Section

Values = Mapping[str, tuple[float, ...]]
"""What was measured, by name, in the order it was taken."""


@dataclass(frozen=True)
class Reading:
    """What two results of a kind can be compared by.

    Attributes:
      name: members that name a row; version: members that must agree under one name.
      values: a row's measurements.
      unit: "s" or "steps".
    """

    name: tuple[str, ...]
    version: tuple[str, ...]
    values: Callable[[Any], Values]
    unit: str = "s"


def of_samples(row: Any) -> Values:
    """The seconds of a row's samples."""
    return {"step": tuple(sample.seconds for sample in row.samples)}


@dataclass(frozen=True)
class Kind:
    """One kind of results.

    Attributes:
      name: the command that writes it, such as "step".
      row: the dataclass of its rows, an AnyRow.
      sections: a result as the sections of a page.
      reading: how results are compared; None where nothing is measured.
      since: the schema version that brought it.
      anew: the rows of one case with the ratios that their samples give; None where rows have no ratios with verdicts.
    """

    name: str
    row: type[Any]
    sections: Callable[[Any], Iterator[Section]]
    reading: Reading | None = None
    since: int = SCHEMA_VERSION
    anew: Callable[[Sequence[Any]], Sequence[Any]] | None = None
