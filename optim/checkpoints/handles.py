"""What checkpoints ask of a variable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

Piece = tuple[tuple[slice, ...], np.ndarray]
"""The place of a shard in a tensor, and its elements."""


class Handle(Protocol):
    """One variable, on any layout."""

    variable: Any
    shape: tuple[int, ...]
    dtype: str
    """TensorFlow's name, `"float32"`, `"bfloat16"`, ..."""
    trainable: bool

    def to_host(self) -> np.ndarray:
        """The whole value."""

    def pieces(self) -> Iterator[Piece] | None:
        """The shards, each once, brought to the host one by one; None if the value is whole on a device."""

    def value(self) -> Any:
        """What `put_back` takes."""

    def put_back(self, value: Any) -> None: ...

    def assign(self, array: np.ndarray) -> None:
        """Give each device its part of an array of this shape and dtype."""
