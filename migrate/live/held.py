"""What the numbers that live variables have already say of which stored variable each is.

Who loads the weights first, and restores the optimizer then, has the proof at hand: a variable that holds all the
numbers of another one is that other one, whatever a mapping or a name says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from migrate.bytes.messages import some
from migrate.live.mapped import numbers
from migrate.state import StoredVariable
from optim.errors import MismatchError

MOST_DIMS = 5
"""Of a variable whose dims are tried in every order."""


@dataclass(frozen=True)
class Held:
    """A stored variable, the live one that is taken for it, and in which order that one has its dims.

    `value` gives the live one's numbers, in float64.
    """

    stored: StoredVariable
    value: Callable[[], np.ndarray]
    axes: tuple[int, ...]


def reasons(rows: Iterable[Held], restores: bool) -> list[str]:
    """Why a restoration is not exact, whose live variables get the stored values over others that deny it.

    Args:
      restores: whether they get them. If so and the mapping is right, they prove it when it is used again.

    Raises:
      MismatchError: they keep values that deny it.
    """
    found = list(against(rows))
    if found and not restores:
        raise MismatchError(
            f"{some(found, between='; ')}: give each variable of the source the live one that it is, with its axes, or"
            " pass restore_variables=True where the live ones shall have other values"
        )
    return [f"{each}, before it was restored; where that is right, restore again" for each in found]


def against(rows: Iterable[Held]) -> Iterator[str]:
    """Where the live numbers are those of another variable, or the right ones with dims in another order."""
    owners: dict[bytes, str] = {}
    strange: list[tuple[Held, bytes]] = []
    for row in rows:
        if row.stored.array is None:
            continue
        wanted, live = np.transpose(numbers(row.stored.array), row.axes), row.value()
        owners.setdefault(_digest(wanted), row.stored.name)
        if not np.array_equal(wanted, live) and np.any(live != live.flat[0]):  # one number everywhere tells nothing
            strange.append((row, _digest(live)))
    for row, digest in strange:
        name = row.stored.name
        if owners.get(digest, name) != name:
            yield f"what is given for {name!r} has the values of {owners[digest]!r}"
        elif axes := _other_axes(row):
            yield f"what is given for {name!r} has its values with the axes {axes}, not {row.axes}"


def _other_axes(row: Held) -> tuple[int, ...]:
    assert row.stored.array is not None
    stored, live = numbers(row.stored.array), row.value()
    if stored.ndim > MOST_DIMS:
        return ()
    orders = (axes for axes in permutations(range(stored.ndim)) if axes != row.axes)
    return next((axes for axes in orders if np.array_equal(np.transpose(stored, axes), live)), ())


def _digest(array: np.ndarray) -> bytes:
    data = np.ascontiguousarray(array, np.float64)
    return repr(data.shape).encode() + hashlib.blake2b(data.reshape(-1).view(np.uint8).data, digest_size=16).digest()
