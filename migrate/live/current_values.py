"""What the numbers that live variables have already say of which stored variable each is.

Who loads the weights first, and restores the optimizer then, has the proof at hand: a variable that holds all the
numbers of another one is that other one, whatever a mapping or a name says.
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
"""Of a variable whose dims are tried in every order."""


@dataclass(frozen=True)
class Held:
    """A stored variable, the live one that is assumed to be it, and in which order that one has its numbers.

    `value` gives the live one's numbers, in float64.
    """

    stored: StoredVariable
    value: Callable[[], np.ndarray]
    order: Order


def reasons(rows: Iterable[Held], stored: Sequence[StoredVariable], restores: bool) -> list[str]:
    """Why a restoration is not exact, whose live variables get the stored values over others that contradict it.

    Args:
      stored: all variables of the source, also those for which no live one is given.
      restores: whether they get the values. If so and the mapping is right, they prove it when it is used again.

    Raises:
      MismatchError: they keep values that contradict it.
    """
    rows = list(rows)
    found = list(against(rows, stored))
    if found and not restores:
        raise MismatchError(
            f"{some(found, between='; ')}: give each variable of the source the live one that it is, with its axes or a"
            " function, or pass restore_variables=True to replace the values of the live ones"
        )
    denied = [f"{each}, before it was restored; where that is right, restore again" for each in found]
    return [*denied, *_open(rows, restores)]


def _open(rows: Sequence[Held], restores: bool) -> list[str]:
    """A doubt where kernels fit in the order of dims of another framework as well, and neither axes nor values say.

    Values that are restored prove no order: they may stand there since the same call was made before.
    """
    open_ = (row for row in rows if not row.order.is_told and _fits_otherwise(row))
    names = [row.stored.name for row in open_ if restores or not _is_held(row)]
    text = (
        f"{some(names)}: dims are equal, so shapes do not show their order, which differs between torch and Keras."
        " Give the axes: (..., (1, 0)) if a kernel is transposed, (..., (0, 1)) if not"
    )
    return [text] if names else []


def _fits_otherwise(row: Held) -> bool:
    """Whether a kernel of this shape has the same shape with outputs and inputs in front, as torch has them."""
    shape = row.stored.shape
    return len(shape) > 1 and (shape[-1], shape[-2], *shape[:-2]) == shape and max(shape) > 1


def _is_held(row: Held) -> bool:
    """Whether the live variable has the stored values, which are others with dims in another order."""
    if row.stored.array is None:
        return False
    live = row.value()
    return np.array_equal(_wanted(row), live) and not _other_axes(row, live)


def against(rows: Sequence[Held], stored: Sequence[StoredVariable]) -> Iterator[str]:
    """Where the live numbers are those of another variable, or the right ones in another order."""
    strange = [row for row in rows if row.stored.array is not None and _is_strange(row)]
    alike: dict[Any, list[StoredVariable]] = {}
    for variable in stored if strange else ():
        if variable.array is not None:
            alike.setdefault(_extremes(numbers(variable.array)), []).append(variable)
    orders = {row.stored.name: row.order for row in rows}
    for row in strange:
        live, name = row.value(), row.stored.name
        for other in alike.get(_extremes(live), ()):
            held = Held(other, row.value, orders.get(other.name, row.order))
            if other.name != name and other.shape == row.stored.shape and np.array_equal(_wanted(held), live):
                yield f"what is given for {name!r} has the values of {other.name!r}"
                break
        else:
            if axes := _other_axes(row, live):
                yield f"what is given for {name!r} has its values with the axes {axes}, not with {row.order}"
            elif _has_the_same(_wanted(row), live):
                yield f"what is given for {name!r} has its values in an order that is not that of {row.order}"


def _is_strange(row: Held) -> bool:
    """Whether the live numbers are others than the stored ones; one everywhere, or zeros and ones, are those of any new
    variable."""
    live = row.value()
    is_new = np.all(live == live.flat[:1]) or np.isin(live, (0.0, 1.0)).all()
    return not is_new and not np.array_equal(_wanted(row), live)


def _wanted(row: Held) -> np.ndarray:
    assert row.stored.array is not None
    return row.order.of(numbers(row.stored.array))


def _has_the_same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have the same numbers, in whatever order: gates of a layer, rows behind a Flatten."""
    return _extremes(a) == _extremes(b) and np.array_equal(np.sort(a, axis=None), np.sort(b, axis=None))


def _extremes(array: np.ndarray) -> tuple[int, float, float]:
    """What arrays of the same numbers have in common, in whatever order, and few others."""
    return array.size, float(array.min(initial=np.inf)), float(array.max(initial=-np.inf))


def _other_axes(row: Held, live: np.ndarray) -> tuple[int, ...]:
    assert row.stored.array is not None
    stored = numbers(row.stored.array)
    if not 2 <= stored.ndim <= MOST_DIMS or _extremes(stored) != _extremes(live):
        return ()
    orders = (axes for axes in permutations(range(stored.ndim)) if axes != row.order.axes)
    return next((axes for axes in orders if np.array_equal(np.transpose(stored, axes), live)), ())
