"""Use the current values of live variables as evidence of which stored variable each is.

If the weights were loaded before the optimizer is restored, the values are the proof: a variable with all the numbers
of another one is that one, despite a mapping or a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from migrate.bytes.messages import some
from migrate.live.mapped import Order, numbers
from migrate.state import StoredVariable
from optim.errors import MismatchError

MOST_DIMS = 5
"""Most dims of a variable whose dims are tried in every order."""


@dataclass(frozen=True)
class Assumed:
    """A stored variable, its assumed live one, and the order of that one's numbers.

    `value` returns the live one's numbers in float64.
    """

    stored: StoredVariable
    value: Callable[[], np.ndarray]
    order: Order


def reasons(rows: Iterable[Assumed], stored: Sequence[StoredVariable], restores: bool) -> list[str]:
    """Explain why a restoration is not exact: stored values replace live ones that contradict the matching.

    Args:
      stored: all variables of the source, also those without a live one.
      restores: whether the values are assigned. A correct mapping is then proven when it is used again.

    Raises:
      MismatchError: values that are not replaced contradict the matching.
    """
    rows = list(rows)
    conflicts = list(against(rows, stored))
    if conflicts and not restores:
        raise MismatchError(
            f"{some(conflicts, between='; ')}: give each variable of the source its live one, with its axes or a"
            " function, or pass restore_variables=True to replace the values of the live ones"
        )
    contradictions = [f"{conflict}, before it was restored; if that is right, restore again" for conflict in conflicts]
    return [*contradictions, *_open(rows, restores)]


def _open(rows: Sequence[Assumed], restores: bool) -> list[str]:
    """Warn about kernels whose shape also fits another framework's order of dims, without axes or values as proof.

    Values that are assigned prove no order: they may be the result of the same call before.
    """
    open_ = (row for row in rows if not row.order.is_told and _fits_otherwise(row))
    names = [row.stored.name for row in open_ if restores or not _has_stored_values(row)]
    text = (
        f"{some(names)}: dims are equal, so shapes do not show their order, which differs between torch and Keras."
        " Give the axes: (..., (1, 0)) if a kernel is transposed, (..., (0, 1)) if not"
    )
    return [text] if names else []


def _fits_otherwise(row: Assumed) -> bool:
    """Whether a kernel keeps its shape with outputs and inputs first, torch's order."""
    shape = row.stored.shape
    return len(shape) > 1 and (shape[-1], shape[-2], *shape[:-2]) == shape and max(shape) > 1


def _has_stored_values(row: Assumed) -> bool:
    if row.stored.array is None:
        return False
    live = row.value()
    return np.array_equal(_wanted(row), live) and not _other_axes(row, live)


def against(rows: Sequence[Assumed], stored: Sequence[StoredVariable]) -> Iterator[str]:
    """Yield contradictions: live numbers of another variable, or the right ones in another order."""
    strange = [row for row in rows if row.stored.array is not None and _is_strange(row)]
    alike: dict[Any, list[StoredVariable]] = {}
    for variable in stored if strange else ():
        if variable.array is not None:
            alike.setdefault(_extremes(numbers(variable.array)), []).append(variable)
    orders = {row.stored.name: row.order for row in rows}
    for row in strange:
        live, name = row.value(), row.stored.name
        for other in alike.get(_extremes(live), ()):
            candidate = Assumed(other, row.value, orders.get(other.name, row.order))
            if other.name != name and other.shape == row.stored.shape and np.array_equal(_wanted(candidate), live):
                yield f"what is given for {name!r} has the values of {other.name!r}"
                break
        else:
            if axes := _other_axes(row, live):
                yield f"what is given for {name!r} has its values with the axes {axes}, not with {row.order}"
            elif _has_the_same(_wanted(row), live):
                yield f"what is given for {name!r} has its values in an order that is not that of {row.order}"


def _is_strange(row: Assumed) -> bool:
    """Whether the live numbers differ from the stored ones. Constants, zeros and ones do not count: any new variable
    has them."""
    live = row.value()
    is_new = np.all(live == live.flat[:1]) or np.isin(live, (0.0, 1.0)).all()
    return not is_new and not np.array_equal(_wanted(row), live)


def _wanted(row: Assumed) -> np.ndarray:
    assert row.stored.array is not None
    return row.order.of(numbers(row.stored.array))


def _has_the_same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have the same numbers in any order: gates of a layer, rows after a Flatten."""
    return _extremes(a) == _extremes(b) and np.array_equal(np.sort(a, axis=None), np.sort(b, axis=None))


def _extremes(array: np.ndarray) -> tuple[int, float, float]:
    """A key that is equal for arrays of the same numbers in any order, and for few others."""
    return array.size, float(array.min(initial=np.inf)), float(array.max(initial=-np.inf))


def _other_axes(row: Assumed, live: np.ndarray) -> tuple[int, ...]:
    assert row.stored.array is not None
    stored = numbers(row.stored.array)
    if not 2 <= stored.ndim <= MOST_DIMS or _extremes(stored) != _extremes(live):
        return ()
    orders = (axes for axes in permutations(range(stored.ndim)) if axes != row.order.axes)
    return next((axes for axes in orders if np.array_equal(np.transpose(stored, axes), live)), ())
