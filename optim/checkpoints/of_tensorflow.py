"""Variables of TensorFlow in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from optim.checkpoints.handles import Piece
from optim.layouts import placement
from optim.state.tracked import unwrap


class TensorFlowHandle:
    """See `handles.Handle`."""

    def __init__(self, variable: Any):
        self.variable = unwrap(variable)
        self.shape = tuple(self.variable.shape.as_list())
        self.dtype = self.variable.dtype.name
        self.trainable = bool(self.variable.trainable)

    def to_host(self) -> np.ndarray:
        return np.asarray(placement.to_host(self.variable))

    def pieces(self) -> Iterator[Piece] | None:
        return None

    def value(self) -> Any:
        return self.variable.read_value()

    def put_back(self, value: Any) -> None:
        self.variable.assign(value)

    def assign(self, array: np.ndarray) -> None:
        self.variable.assign(placement.from_host(array, placement.layout_of(self.variable)))
