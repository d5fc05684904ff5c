"""Gradients of embedding tables: the rows that a batch looked up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bench.case import Case


@dataclass(frozen=True)
class Rows:
    """Some rows of a table; the others are zero.

    Attributes: indices: distinct and ascending, int64; values: (rows, width), float32; shape: of the table.
    """

    indices: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]

    def at(self, positions: np.ndarray) -> np.ndarray:
        """The table's elements at flat positions."""
        row, column = np.divmod(positions, self.shape[1])
        found = self.touched(positions)
        place = np.minimum(np.searchsorted(self.indices, row), len(self.indices) - 1)
        return np.where(found, self.values[place, column], np.float32(0.0))

    def touched(self, positions: np.ndarray) -> np.ndarray:
        """Whether each flat position is in a row that is here."""
        return np.isin(positions // self.shape[1], self.indices)

    def positions(self, most: int) -> np.ndarray:
        """Flat positions spread over the rows, at most about `most`."""
        size = len(self.indices) * self.shape[1]
        step = -(-size // most) | 1
        row, column = np.divmod(np.arange(0, size, step), self.shape[1])
        return self.indices[row] * self.shape[1] + column

    def whole(self) -> np.ndarray:
        dense = np.zeros(self.shape, np.float32)
        dense[self.indices] = self.values
        return dense


def touched_rows(case: Case, index: int) -> int:
    """How many rows of a table a gradient has."""
    return min(case.options.sparse_rows or 0, case.tensors[index].shape[0])


def rows(case: Case, index: int, which: int) -> Rows:
    """Gradient number `which` of a table."""
    from bench.case import uniform

    shape = case.tensors[index].shape
    count = touched_rows(case, index)
    generator = np.random.Generator(np.random.SFC64([case.seed, index, 1 + which, 1]))
    indices = np.sort(generator.choice(shape[0], count, replace=False)).astype(np.int64)
    return Rows(indices, uniform(case, index, (count, *shape[1:]), stream=1 + which), shape)
