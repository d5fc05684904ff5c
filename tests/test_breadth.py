"""What `make test` keeps of a grid has what it is said to have, and the rest is still there."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.helpers.breadth import ONLY_BROAD, covering, leave_to_breadth, only_broad

pytest_plugins = ["pytester"]
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


def test_every_test_has_a_quick_part_or_is_marked_itself(pytestconfig: pytest.Config) -> None:
    """A parameter list that is `broad` as a whole would take a test out of `make test` unseen."""
    assert not pytestconfig.stash[ONLY_BROAD]


def test_a_test_without_a_quick_part_is_found(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = breadth")
    pytester.makepyfile("""
        import pytest
        slow = pytest.mark.breadth

        @pytest.mark.parametrize("x", [pytest.param(1, marks=slow), pytest.param(2, marks=slow)])
        def test_swallowed(x): pass

        @pytest.mark.parametrize("x", [1, pytest.param(2, marks=slow)])
        def test_quick(x): pass

        @slow
        @pytest.mark.parametrize("x", [1, 2])
        def test_marked(x): pass
    """)
    items, _ = pytester.inline_genitems()
    assert [name.rpartition("::")[2] for name in only_broad(items)] == ["test_swallowed"]


def test_quick_keeps_evenly_spread_parameters(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    breadth\n    quick")
    pytester.makepyfile("""
        import pytest

        @pytest.mark.quick(3)
        @pytest.mark.parametrize("x", [0, 1, 2, 3, 4, pytest.param(9, marks=pytest.mark.breadth), 5])
        def test_some(x): pass

        @pytest.mark.parametrize("x", [0, 1])
        def test_all(x): pass

        def of_two():
            def test(x): pass
            return pytest.mark.quick(1)(pytest.mark.parametrize("x", [0, 1])(test))

        for number in range(20):
            globals()[f"test_one_{number}"] = of_two()
    """)
    items, _ = pytester.inline_genitems()
    leave_to_breadth(items)
    kept = [item.nodeid.rpartition("::")[2] for item in items if not item.get_closest_marker("breadth")]
    ones = [name for name in kept if name.startswith("test_one")]
    assert [name for name in kept if name not in ones] in (
        ["test_some[0]", "test_some[2]", "test_some[4]", "test_all[0]", "test_all[1]"],
        ["test_some[1]", "test_some[3]", "test_some[5]", "test_all[0]", "test_all[1]"],
    )
    assert len({name.partition("[")[0] for name in ones}) == len(ones) == 20
    assert {name[-3:] for name in ones} == {"[0]", "[1]"}, "not the first of each test"
