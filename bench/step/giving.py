"""Which gradients a peer gets: in the first steps, in those that are timed, and after the last round.

There are two gradients of each tensor, 0 and 1. The first steps of a peer have both, those that are timed gradient 1.
After the last round come turns in which many tensors get new arrays with other numbers, a power of two times gradient
1: whoever recognises a gradient, by its place or by its numbers, cannot know these. At the end gradient 0 comes again.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bench.cases.sparse import Rows

if TYPE_CHECKING:
    from bench.cases.case import Case

LAST = 200
"""One of so many steps has gradient 0 in the end: without them what moved would be off by a hundredth."""

TURNS, MOST_ANEW = 8, 2**23
"""Times that gradients are given anew, and the most elements of them, for all arrays are kept: noise alone orders the
steps of so many turns as memory does in one of 13,000 processes, and makes them differ by as much in fewer."""

STEPS_OF_A_TURN = 3
"""One that is not timed, then one that is with what the peer has had, then one with what is new."""


class Mix(NamedTuple):
    """The mean gradient of a step: the weights of gradients 0 and 1, and that of gradient 1 for the tensors that are
    given anew."""

    first: float
    second: float
    anew: float


def calls(accumulate: int) -> tuple[tuple[int, ...], ...]:
    """Which gradient each call of each step gets: A, A, B; of n that are accumulated the last of the second step
    differs from the others, so that their mean counts.

    With one gradient alone a wrong beta would not show: Adam hardly sees |g|.
    """
    if accumulate == 1:
        return ((0,), (0,), (1,))
    return ((0,) * accumulate, (0,) * (accumulate - 1) + (1,), (1,) * accumulate)


def mixes(accumulate: int, made: int, turns: int = 0) -> list[Mix]:
    """The gradients of so many steps: those of `calls`, then gradient 1 alone, the turns, and in the last of LAST
    gradient 0 again: what a peer remembers of gradient 1 must not be used for it."""
    first = [(step.count(0) / accumulate, step.count(1) / accumulate) for step in calls(accumulate)]
    later = made - len(first)
    last = -(-later // LAST)
    scales = [1.0, *(scale(turn) for turn in range(turns))]
    anew = [1.0] * (later - last - STEPS_OF_A_TURN * turns)
    for before, now in pairwise(scales):
        anew += [before] * (STEPS_OF_A_TURN - 1) + [now]
    return [Mix(a, b, b) for a, b in first] + [Mix(0.0, 1.0, c) for c in anew] + [Mix(1.0, 0.0, 0.0)] * last


def last_steps(made: int) -> int:
    """How many steps with gradient 0 follow those that were made."""
    return max(1, -(-(made - len(calls(1))) // (LAST - 1)))


def scale(turn: int) -> float:
    """What gradient 1 is multiplied with in a turn: exact in every dtype, other numbers in each."""
    return 0.5 ** (turn + 1)


def given_anew(case: Case) -> frozenset[int]:
    """The tensors whose gradients are: as many as fit into MOST_ANEW, the first before others."""
    found, left = set(), MOST_ANEW
    for index, tensor in enumerate(case.tensors):
        if tensor.elements <= left:
            found.add(index)
            left -= tensor.elements
    return frozenset(found)


def scaled(known: np.ndarray | Rows, turn: int) -> np.ndarray | Rows:
    """The numbers of a turn in a new array, of gradient 1."""
    factor = np.float32(scale(turn))
    if isinstance(known, Rows):
        return Rows(known.indices, known.values * factor, known.shape)
    return known * factor
