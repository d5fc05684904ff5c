"""A finding: the result for one place in a program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

REWRITTEN, SAME, DIFFERS, BY_HAND, UNSURE, UNREADABLE = (
    "rewritten",
    "same as before",
    "differs",
    "by hand",
    "unsure",
    "unreadable",
)
VERDICTS = (REWRITTEN, SAME, DIFFERS, BY_HAND, UNSURE, UNREADABLE)
OPEN = frozenset({DIFFERS, BY_HAND, UNSURE})
"""Verdicts that leave work to the user."""


@dataclass(frozen=True)
class Finding:
    """One place and its result.

    Attributes:
      path: the file; line, column: from 1. cell: the notebook's cell, from 1, and `line` counts in that cell.
      verdict: one of VERDICTS. old, new: the source before and after; `new` is empty if nothing is written.
      message: the reason, and what would be exact or what to do.
    """

    path: str
    line: int
    column: int
    verdict: str
    old: str
    new: str = ""
    message: str = ""
    cell: int | None = None

    @property
    def where(self) -> str:
        return f"{self.path}:" + (f"cell {self.cell}:" if self.cell else "") + f"{self.line}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def exit_code(findings: Iterable[Finding]) -> int:
    """0: everything is rewritten or the same; 1: some places are left to the user; 3: a file cannot be read."""
    verdicts = {finding.verdict for finding in findings}
    return 3 if UNREADABLE in verdicts else 1 if verdicts & OPEN else 0
