"""Choose the part of a large checkpoint on which a step is compared: small enough, and complete for its rule.

If a rule works element by element, the step of some numbers does not depend on the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from migrate.bytes.arrays import LazyArray
from migrate.proof.parity import ELEMENTWISE
from migrate.state import OptimizerState, StoredVariable
from optim.bytes.bundle import numpy_dtype

NUMBERS = 1 << 21
"""Numbers of all variables together up to which a step is compared on all of them."""
SPREAD = 1 << 19
"""Numbers of all variables together beyond that; with slots, in both precisions, each needs about a hundred bytes."""
MOST, LEAST = 1 << 13, 1 << 10
"""Numbers of one variable."""
BLOCKS = 16
"""Number of pieces, spread from its first number to its last."""
Pieces = tuple[tuple[int, int], ...] | None
"""Parts of a flat array as (first number, end), in order and disjoint; None for the whole array."""
Chosen = Mapping[str, Pieces]
"""The chosen parts of each variable; missing ones are left out."""


def sample(state: OptimizerState) -> tuple[Chosen, str]:
    """Choose the sample for a step, and describe what it leaves out (empty if nothing)."""
    sizes = {v.name: math.prod(v.shape) for v in state.variables}
    if sum(sizes.values()) <= NUMBERS:
        return dict.fromkeys(sizes), ""
    if state.algorithm in ELEMENTWISE:
        most = min(MOST, max(LEAST, SPREAD // len(sizes)))
        chosen = {name: None if size <= most else _spread(size, most) for name, size in sizes.items()}
        return chosen, f"the step was compared on up to {most} numbers of each variable, spread over it"
    whole: dict[str, Pieces] = {}
    room = NUMBERS
    for name in sorted(sizes, key=lambda name: sizes[name]):
        room -= sizes[name]
        if room >= 0:
            whole[name] = None
    left = len(sizes) - len(whole)
    return (
        whole,
        f"the step was not compared on the {left} largest variables, because {state.algorithm} needs them whole",
    )


def _spread(size: int, count: int) -> tuple[tuple[int, int], ...]:
    """`count` of `size` numbers in even, disjoint pieces."""
    length = count // BLOCKS
    starts = ((size - length) * i // (BLOCKS - 1) for i in range(BLOCKS))
    return tuple((start, start + length) for start in starts)


def reduced(state: OptimizerState, chosen: Chosen) -> OptimizerState:
    """The state of the chosen parts only. A variable in pieces keeps its rank, as [n, 1, ...]."""
    owners = {v.name: v.shape for v in state.variables}

    def slot(name: str, array: LazyArray) -> LazyArray:
        return array if array.shape != owners.get(name) else _pieces(array, chosen[name])

    return replace(
        state,
        variables=tuple(_variable(v, chosen[v.name]) for v in state.variables if v.name in chosen),
        slots={
            kind: {name: slot(name, array) for name, array in per.items() if name in chosen}
            for kind, per in state.slots.items()
        },
        unmapped={},
    )


def _variable(variable: StoredVariable, pieces: Pieces) -> StoredVariable:
    if pieces is None:
        return variable
    array = None if variable.array is None else _pieces(variable.array, pieces)
    return replace(variable, array=array, shape=_shape(variable.shape, pieces))


def _shape(shape: tuple[int, ...], pieces: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    return (sum(end - start for start, end in pieces), *(1 for _ in shape[1:]))


def _pieces(array: LazyArray, pieces: Pieces) -> LazyArray:
    if pieces is None:
        return array
    shape, dtype = _shape(array.shape, pieces), numpy_dtype(array.dtype)

    def load() -> np.ndarray:
        if array.extent is None:
            flat = array.load().reshape(-1)
            return np.concatenate([flat[start:end] for start, end in pieces]).reshape(shape)
        parts = [array.extent.part(start * dtype.itemsize, end * dtype.itemsize).read() for start, end in pieces]
        return np.concatenate(parts).view(dtype).reshape(shape)

    return LazyArray(shape, array.dtype, load, array.stored_as)
