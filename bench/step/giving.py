"""Choose the gradients of a peer: in the first steps, in timed steps, and after the last round.

There are two gradients of each tensor, 0 and 1. The first steps of a peer use both; timed steps use gradient 1. After
the last round, many tensors get new arrays with other numbers in some turns: a power of two times gradient 1. A peer
that recognises a gradient, by its address or by its numbers, cannot know these. At the end gradient 0 comes again.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bench.cases.sparse import Rows

if TYPE_CHECKING:
    from bench.cases.case import Case

LAST = 200
"""One of this many steps has gradient 0 at the end: without them an error of a hundredth would show in the movement."""

TURNS, MOST_REPLACED = 8, 2**23
"""How often gradients are replaced, and the most elements of the new ones; all arrays are kept.

With this many turns, noise alone produced the order of times that a remembering peer would produce in one of 13,000
processes. With fewer turns, noise makes the times differ by as much.
"""

STEPS_OF_A_TURN = 3
"""One untimed step, then one timed step with a known gradient, then one with a new gradient."""


class Mix(NamedTuple):
    """The mean gradient of a step: the weights of gradients 0 and 1, and the weight of gradient 1 for tensors with new
    gradients.
    """

    first: float
    second: float
    replaced: float


def calls(accumulate: int) -> tuple[tuple[int, ...], ...]:
    """Return which gradient each call of each step gets: A, A, B.

    With n accumulated gradients, the last one of the second step differs from the others, so that their mean matters.
    With one gradient alone a wrong beta would not show: |g| hardly affects Adam.
    """
    if accumulate == 1:
        return ((0,), (0,), (1,))
    return ((0,) * accumulate, (0,) * (accumulate - 1) + (1,), (1,) * accumulate)


def mixes(accumulate: int, steps: int, turns: int = 0) -> list[Mix]:
    """Return the gradients of `steps` steps.

    These are those of `calls`, then gradient 1 alone, the turns, and in the last of LAST gradient 0 again. A peer must
    not use what it remembers of gradient 1 for it.
    """
    first = [(step.count(0) / accumulate, step.count(1) / accumulate) for step in calls(accumulate)]
    later = steps - len(first)
    last = -(-later // LAST)
    scales = [1.0, *(scale(turn) for turn in range(turns))]
    replaced = [1.0] * (later - last - STEPS_OF_A_TURN * turns)
    for before, now in pairwise(scales):
        replaced += [before] * (STEPS_OF_A_TURN - 1) + [now]
    return [Mix(a, b, b) for a, b in first] + [Mix(0.0, 1.0, c) for c in replaced] + [Mix(1.0, 0.0, 0.0)] * last


def last_steps(steps: int) -> int:
    """Return how many steps with gradient 0 follow the steps already made."""
    return max(1, -(-(steps - len(calls(1))) // (LAST - 1)))


def scale(turn: int) -> float:
    """Return the factor of gradient 1 in a turn: exact in every dtype, and different in each turn."""
    return 0.5 ** (turn + 1)


def replaced_tensors(case: Case) -> frozenset[int]:
    """Return the tensors that get new gradients: as many as fit into MOST_REPLACED, in order."""
    indices, left = set(), MOST_REPLACED
    for index, tensor in enumerate(case.tensors):
        if tensor.elements <= left:
            indices.add(index)
            left -= tensor.elements
    return frozenset(indices)


def scaled(known: np.ndarray | Rows, turn: int) -> np.ndarray | Rows:
    """Return the numbers of a turn in a new array, from gradient 1."""
    factor = np.float32(scale(turn))
    if isinstance(known, Rows):
        return Rows(known.indices, known.values * factor, known.shape)
    return known * factor
