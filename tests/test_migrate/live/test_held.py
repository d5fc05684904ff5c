"""What live variables hold already says which stored ones they are, whatever a mapping or a name says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from migrate.bytes.arrays import LazyArray
from migrate.live import current_values
from migrate.live.mapped import Order
from migrate.state import StoredVariable
from optim.errors import MismatchError

VALUES = {name: np.random.default_rng(i).standard_normal((3, 3)).astype(np.float32) for i, name in enumerate("abc")}


def _row(name: str, live: np.ndarray, order: tuple[int, ...] | Order = (0, 1)) -> current_values.Assumed:
    array = LazyArray((3, 3), "float32", lambda: VALUES[name], name)
    stored = StoredVariable(name, array, (3, 3), "float32", True)
    return current_values.Assumed(
        stored, lambda: live.astype(np.float64), order if isinstance(order, Order) else Order(order)
    )


def _reasons(rows: Sequence[current_values.Assumed], restores: bool) -> list[str]:
    return current_values.reasons(rows, [_row(name, value).stored for name, value in VALUES.items()], restores)


def test_right_values_and_none_deny_nothing() -> None:
    assert _reasons([_row(name, value) for name, value in VALUES.items()], restores=False) == []
    assert _reasons([_row(name, value.T, (1, 0)) for name, value in VALUES.items()], restores=False) == []
    assert _reasons([_row(name, np.ones((3, 3))) for name in VALUES], restores=False) == []
    assert _reasons([_row(name, np.eye(3)) for name in VALUES], restores=False) == []
    assert _reasons([_row(name, value + 1) for name, value in VALUES.items()], restores=False) == []


def test_values_of_another_one_and_other_axes_deny_a_mapping() -> None:
    exchanged = [_row("a", VALUES["b"]), _row("b", VALUES["a"]), _row("c", VALUES["c"])]
    with pytest.raises(
        MismatchError, match="given for 'a' has the values of 'b'; what is given for 'b' has the values"
    ):
        _reasons(exchanged, restores=False)
    assert len(_reasons(exchanged, restores=True)) == 2
    with pytest.raises(
        MismatchError, match=r"given for 'c' has its values with the axes \(1, 0\), not with the axes \(0, 1\)"
    ):
        _reasons([_row("c", VALUES["c"].T)], restores=False)


def test_the_same_numbers_in_another_order_deny_a_mapping() -> None:
    """As gates of a layer are in another framework, or rows of a kernel behind a Flatten."""
    moved = VALUES["a"][[1, 0, 2]]
    with pytest.raises(
        MismatchError, match=r"given for 'a' has its values in an order .* the axes \(0, 1\): give each"
    ):
        _reasons([_row("a", moved)], restores=False)
    places = np.arange(9).reshape(3, 3)
    assert _reasons([_row("a", moved, Order(places=places[[1, 0, 2]]))], restores=False) == []
    with pytest.raises(MismatchError, match=r"with the axes \(0, 1\), not with its function"):
        _reasons([_row("a", VALUES["a"], Order(places=places[[1, 0, 2]]))], restores=False)


def test_values_of_one_that_is_not_given_deny_a_mapping() -> None:
    with pytest.raises(MismatchError, match="given for 'a' has the values of 'c'"):
        _reasons([_row("a", VALUES["c"])], restores=False)
    with pytest.raises(MismatchError, match="given for 'a' has the values of 'c'"):
        _reasons([_row("a", VALUES["c"].T, (1, 0))], restores=False)
