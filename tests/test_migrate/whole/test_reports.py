"""Compare every report of every fixture with the stored ones, which `python -m tests.golden_reports --write` writes."""

from __future__ import annotations

import pytest

from tests import golden_reports

PARTS = 96
QUICK = 1


@pytest.mark.parametrize(
    "part", [part if part < QUICK else pytest.param(part, marks=pytest.mark.breadth) for part in range(PARTS)]
)
def test_reports_are_as_before(part: int) -> None:
    names = golden_reports.sources()[part::PARTS]
    changed = [
        line
        for name, text in zip(names, golden_reports.reports(names), strict=True)
        for line in golden_reports.difference(name, text)
    ]
    assert not changed, "\n".join(changed[:40])


def test_every_source_has_a_report() -> None:
    assert sorted(golden_reports.stored()) == golden_reports.sources()


def test_a_changed_fact_is_shown() -> None:
    name = next(name for name, text in golden_reports.stored().items() if "exit: 0" in text)
    before = golden_reports.stored()[name]
    after = before.replace("exit: 0", "exit: 9", 1)
    assert golden_reports.difference(name, before) == []
    shown = golden_reports.difference(name, after)
    assert [line[:8] for line in shown if line.startswith(("-exit", "+exit"))] == ["-exit: 0", "+exit: 9"]
