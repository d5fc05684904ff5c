"""All wild cases into all their targets: what is called exact is right."""

from __future__ import annotations

import json

import pytest

from tests import wild_table

PAIRS = [
    (case, to)
    for case in wild_table.cases(wild_table.WILD)
    for to in json.loads((wild_table.WILD / case / "case.json").read_text())["to"]
]


@pytest.mark.breadth
@pytest.mark.parametrize(("case", "to"), PAIRS)
def test_nothing_is_exact_and_wrong(case: str, to: str) -> None:
    row = wild_table.row(wild_table.WILD, case, to)
    assert "WRONG" not in row.verdict, row
