"""Variables of Keras on JAX and PyTorch in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np

from optim.checkpoints.handles import Piece
from optim.errors import UnsupportedError


class KerasHandle:
    """See `handles.Handle`."""

    def __init__(self, variable: Any):
        self.variable = variable
        self.shape = tuple(int(n) for n in variable.shape)
        self.dtype = str(variable.dtype)
        self.trainable = bool(variable.trainable)

    def to_host(self) -> np.ndarray:
        self._check_is_whole_here()
        return np.asarray(import_module("keras").ops.convert_to_numpy(self.variable.value))

    def pieces(self) -> Iterator[Piece] | None:
        value = self.variable.value
        if not self._is_divided(value):
            return None
        self._check_is_whole_here()
        return ((shard.index, np.asarray(shard.data)) for shard in value.addressable_shards if shard.replica_id == 0)

    def value(self) -> Any:
        value = self.variable.value
        return value.detach().clone() if hasattr(value, "detach") else value  # steps on PyTorch are in place

    def put_back(self, value: Any) -> None:
        self.variable.assign(value)

    def assign(self, array: np.ndarray) -> None:
        value: Any = array
        if self._is_divided(self.variable.value):
            make = import_module("jax").make_array_from_callback
            value = make(self.shape, self.variable.value.sharding, lambda index: array[index])
        self.variable.assign(value)

    @staticmethod
    def _is_divided(value: Any) -> bool:
        """Whether devices of JAX have parts of a value."""
        return not getattr(getattr(value, "sharding", None), "is_fully_replicated", True)

    def _check_is_whole_here(self) -> None:
        if not getattr(self.variable.value, "is_fully_addressable", True):
            raise UnsupportedError(
                f"{self.variable.path} is divided among several processes, and a checkpoint is written by one; save"
                " with keras.saving or Orbax there"
            )
