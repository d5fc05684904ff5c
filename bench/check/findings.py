"""Findings about runs and machines, in one format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bench.results.document import SCHEMA_VERSION
from bench.results.records import plain

SEVERITIES = ("noisy", "warning", "information")


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
      severity: "noisy": do not trust the numbers; "warning": trust only ratios within the run; "information".
      what: one word, such as "drift"; where: a row or a part of the machine; text: with the numbers, and what to do.
    """

    severity: str
    what: str
    where: str
    text: str


def stable(findings: Iterable[Finding]) -> bool:
    """Whether no finding is "noisy"."""
    return all(finding.severity != "noisy" for finding in findings)


def document(findings: Iterable[Finding], of: str) -> dict[str, Any]:
    """Return the output of `dtopt bench check --json`; `of` is "run" or "machine"."""
    results = tuple(findings)
    return {
        "kind": "dtopt bench check",
        "schema_version": SCHEMA_VERSION,
        "of": of,
        "stable": stable(results),
        "findings": plain(results),
    }
