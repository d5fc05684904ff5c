"""Gradients of embedding tables: the rows that a batch looked up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Rows:
    """Some rows of a table; the others are zero.

    Attributes: indices: distinct and ascending, int64; values: (rows, width), float32; shape: of the table.
    """

    indices: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]

    def at(self, positions: np.ndarray) -> np.ndarray:
        """Return the table's elements at flat positions."""
        row, column = np.divmod(positions, self.shape[1])
        is_touched = self.touched(positions)
        place = np.minimum(np.searchsorted(self.indices, row), len(self.indices) - 1)
        return np.where(is_touched, self.values[place, column], np.float32(0.0))

    def touched(self, positions: np.ndarray) -> np.ndarray:
        """Whether each flat position is in one of these rows."""
        return np.isin(positions // self.shape[1], self.indices)

    def positions(self, most: int) -> np.ndarray:
        """Return flat positions spread over the rows, at most about `most`."""
        size = len(self.indices) * self.shape[1]
        step = -(-size // most) | 1
        row, column = np.divmod(np.arange(0, size, step), self.shape[1])
        return self.indices[row] * self.shape[1] + column

    def whole(self) -> np.ndarray:
        dense = np.zeros(self.shape, np.float32)
        dense[self.indices] = self.values
        return dense
