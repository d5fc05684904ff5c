"""What the numbers that live variables have already say of which stored variable each is.

Who loads the weights first, and restores the optimizer then, has the proof at hand: a variable that holds all the
numbers of another one is that other one, whatever a mapping or a name says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from migrate.bytes.messages import some
from migrate.live.mapped import Order, numbers
from migrate.state import StoredVariable
from optim.errors import MismatchError

MOST_DIMS = 5
"""Of a variable whose dims are tried in every order."""


@dataclass(frozen=True)
class Held:
    """A stored variable, the live one that is taken for it, and in which order that one has its numbers.

    `value` gives the live one's numbers, in float64.
    """

    stored: StoredVariable
    value: Callable[[], np.ndarray]
    order: Order


def reasons(rows: Iterable[Held], restores: bool) -> list[str]:
    """Why a restoration is not exact, whose live variables get the stored values over others that deny it.

    Args:
      restores: whether they get them. If so and the mapping is right, they prove it when it is used again.

    Raises:
      MismatchError: they keep values that deny it.
    """
    rows = list(rows)
    found = list(against(rows))
    if found and not restores:
        raise MismatchError(
            f"{some(found, between='; ')}: give each variable of the source the live one that it is, with its axes or a"
            " function, or pass restore_variables=True where the live ones shall have other values"
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
        f"{some(names)}: dims are alike, so that shapes do not tell their order, which is another in torch than in"
        " Keras, and no axes are given; say them: (..., (1, 0)) where a kernel is transposed, (..., (0, 1)) where not"
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


def against(rows: Iterable[Held]) -> Iterator[str]:
    """Where the live numbers are those of another variable, or the right ones with dims in another order."""
    alike: dict[bytes, list[Held]] = {}
    strange = []
    for row in rows:
        if row.stored.array is None:
            continue
        wanted, live = _wanted(row), row.value()
        alike.setdefault(_beginning(wanted), []).append(row)
        if not np.array_equal(wanted, live) and np.any(live != live.flat[0]):  # one number everywhere tells nothing
            strange.append(row)
    for row in strange:
        live, name = row.value(), row.stored.name
        owner = next((o for o in alike.get(_beginning(live), ()) if np.array_equal(_wanted(o), live)), None)
        if owner is not None:
            yield f"what is given for {name!r} has the values of {owner.stored.name!r}"
        elif axes := _other_axes(row, live):
            yield f"what is given for {name!r} has its values with the axes {axes}, not with {row.order}"
        elif _has_the_same(_wanted(row), live):
            yield f"what is given for {name!r} has its values in an order that is not that of {row.order}"


def _wanted(row: Held) -> np.ndarray:
    assert row.stored.array is not None
    return row.order.of(numbers(row.stored.array))


def _has_the_same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have the same numbers, in whatever order: gates of a layer, rows behind a Flatten."""
    is_near = (a.min(), a.max()) == (b.min(), b.max())
    return is_near and np.array_equal(np.sort(a, axis=None), np.sort(b, axis=None))


def _beginning(array: np.ndarray) -> bytes:
    """What arrays of the same numbers have in common, and few others."""
    return repr(array.shape).encode() + np.asarray(array.flat[:1024], np.float64).tobytes()


def _other_axes(row: Held, live: np.ndarray) -> tuple[int, ...]:
    assert row.stored.array is not None
    stored = numbers(row.stored.array)
    if not 2 <= stored.ndim <= MOST_DIMS or (stored.min(), stored.max()) != (live.min(), live.max()):
        return ()
    orders = (axes for axes in permutations(range(stored.ndim)) if axes != row.order.axes)
    return next((axes for axes in orders if np.array_equal(np.transpose(stored, axes), live)), ())
