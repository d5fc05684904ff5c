"""Which parameters of a test `make test` leaves to `make test-all`."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import pytest


def broad(*values: Any) -> Any:
    """Parameters that only broaden what the test's others show."""
    assert not any(getattr(value, "__name__", "").startswith("test_") for value in values), "it decorates no test"
    return pytest.param(*values, marks=pytest.mark.breadth)


def covering(strength: int, /, **axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrizes a test by all combinations of the axes' values, of which `make test` runs a covering part.

    Args:
      strength: how many values meet in every possible way in that part. 1: each value is there; 2: each two values of
        two axes are there together.
    """
    rows = list(product(*axes.values()))
    quick = _covering_part([tuple(str(value) for value in row) for row in rows], strength)
    marked = [
        pytest.param(*row, marks=() if i in quick else pytest.mark.breadth, id="-".join(map(_label, row)))
        for i, row in enumerate(rows)
    ]
    return pytest.mark.parametrize(list(axes), marked)


def _covering_part(rows: list[tuple[str, ...]], strength: int) -> set[int]:
    """Positions of rows that together have all that any row has: greedily, next of those that add most the one whose
    values were taken least."""
    met = [set(combinations(enumerate(row), strength)) for row in rows]
    missing, part, taken = set().union(*met), set[int](), Counter[tuple[int, str]]()
    while missing:
        best = max(
            range(len(rows)), key=lambda i: (len(met[i] & missing), -sum(taken[v] for v in enumerate(rows[i])), -i)
        )
        part.add(best)
        taken.update(enumerate(rows[best]))
        missing -= met[best]
    return part


def _label(value: Any) -> str:
    return value.__name__ if hasattr(value, "__name__") else getattr(value, "name", None) or str(value)


def leave_to_breadth(items: Iterable[pytest.Item]) -> None:
    """Mark what `quick(n)` leaves out: all but n of a test's parameters, evenly spread, that are not marked already.

    The first of them depends on the test's name, so that tests that keep one parameter do not all keep the same.
    """
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("quick") and not item.get_closest_marker("breadth"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, parameters in tests.items():
        mark = parameters[0].get_closest_marker("quick")
        assert mark is not None
        (count,) = mark.args
        start = zlib.crc32(name.encode())
        kept = {(start + i * len(parameters) // count) % len(parameters) for i in range(count)}
        for i, item in enumerate(parameters):
            if i not in kept:
                item.add_marker(pytest.mark.breadth)


def only_broad(items: Iterable[pytest.Item]) -> list[str]:
    """Names of tests that `make test` never runs, because of their parameters and not of a mark of their own."""
    quick, broad_by_parameters = set[str](), dict[str, None]()
    for item in items:
        name = item.nodeid.partition("[")[0]
        marks = [mark for node in item.listchain()[:-1] for mark in node.own_markers]
        marks += getattr(getattr(item, "function", None), "pytestmark", [])
        if not any(mark.name == "breadth" for mark in item.iter_markers()):
            quick.add(name)
        elif not any(mark.name == "breadth" for mark in marks):
            broad_by_parameters[name] = None
    return [name for name in broad_by_parameters if name not in quick]


ONLY_BROAD = pytest.StashKey[list[str]]()
