"""The description of a kind of results, so that code to read, compare and show results needs no list of kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.results.document import SCHEMA_VERSION

if TYPE_CHECKING:
    from bench.page.section import Section

Values = Mapping[str, tuple[float, ...]]
"""Measured values by name, in the order of measurement."""


@dataclass(frozen=True)
class Reading:
    """How to compare two results of a kind.

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
    """Return the seconds of a row's samples."""
    return {"step": tuple(sample.seconds for sample in row.samples)}


@dataclass(frozen=True)
class Kind:
    """One kind of results.

    Attributes:
      name: the command that writes it, such as "step".
      row: the dataclass of its rows, an AnyRow.
      sections: converts a result to the sections of a page.
      reading: how to compare results; None if the kind measures nothing.
      since: the schema version that introduced it.
      update_ratios: returns the rows of one case with ratios computed from their samples by the current code; None if
        rows have no ratios with verdicts.
    """

    name: str
    row: type[Any]
    sections: Callable[[Any], Iterator[Section]]
    reading: Reading | None = None
    since: int = SCHEMA_VERSION
    update_ratios: Callable[[Sequence[Any]], Sequence[Any]] | None = None
