"""Findings as SARIF 2.1.0, which code hosts and editors show next to the lines (OASIS, 2020)."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from migrate.code.findings import BY_HAND, DIFFERS, REWRITTEN, SAME, UNREADABLE, UNSURE, Finding
from migrate.code.run import CodeReport

LEVELS = {
    REWRITTEN: "note",
    SAME: "none",
    DIFFERS: "warning",
    BY_HAND: "warning",
    UNSURE: "warning",
    UNREADABLE: "error",
}
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def document(report: CodeReport, version: str) -> dict[str, Any]:
    """The report as one SARIF log with one run."""
    rules = [{"id": _rule(verdict), "shortDescription": {"text": verdict}} for verdict in LEVELS]
    driver = {"name": "dtopt migrate code", "version": version, "rules": rules}
    results = [_result(finding) for finding in report.findings]
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _rule(verdict: str) -> str:
    return verdict.replace(" ", "-")


def _result(finding: Finding) -> dict[str, Any]:
    parts = [finding.verdict, finding.new, finding.message]
    region = {"startLine": finding.line, "startColumn": finding.column}
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": {"uri": PurePath(finding.path).as_posix()}, "region": region}
    }
    if finding.cell:
        location["logicalLocations"] = [{"name": f"cell {finding.cell}"}]
    return {
        "ruleId": _rule(finding.verdict),
        "level": LEVELS[finding.verdict],
        "message": {"text": ": ".join(part for part in parts if part)},
        "locations": [location],
    }
