"""What `make test` keeps of a grid has what it is said to have, and the rest is still there."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.helpers.breadth import covering

AXES = {"name": ["a", "b", "c", "d"], "mode": ["eager", "function"], "dtype": [1, 2, 3]}


@pytest.mark.parametrize(("strength", "count"), [(1, 4), (2, 12), (3, 24)])
def test_a_covering_part(strength: int, count: int) -> None:
    names, rows = covering(strength, **AXES).args
    assert names == list(AXES)
    assert [row.values for row in rows] == list(product(*AXES.values()))
    quick = [row.values for row in rows if not row.marks]
    assert len(quick) == count
    for places in combinations(range(len(AXES)), strength):
        wanted = set(product(*(list(AXES.values())[i] for i in places)))
        assert {tuple(row[i] for i in places) for row in quick} == wanted
