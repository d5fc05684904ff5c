"""An array that is still in its file: shape and dtype are known, the bytes are read when they are used."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from optim.bytes.ranges import Extent


@dataclass(frozen=True)
class LazyArray:
    """An array in a file: shape and dtype are known, the bytes are read by `load()`, each time again.

    `dtype` is TensorFlow's name (`"float32"`, `"bfloat16"`, `"int64"`, ...). `load` returns a numpy array; for bfloat16
    a `uint16` array of the same bits, in this machine's byte order.
    """

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], np.ndarray]
    stored_as: str
    """Its place in the source: a key, a dataset path, or `weights[3]`."""
    extent: Extent | None = None
    """Its bytes in the source, if they equal those of `load`, so that they can be copied without decoding."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def number(self) -> float:
        """Its only number."""
        return float(widened(self.load(), self.dtype).item())


def loaded_dtype(name: str) -> np.dtype:
    """numpy's dtype of `load` for a TensorFlow dtype."""
    return np.dtype(np.uint16 if name == "bfloat16" else name)


def native(values: np.ndarray) -> np.ndarray:
    """The same numbers in this machine's byte order: IBM's mainframes, for example, write the other."""
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def narrowed(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round floats to a dtype, in the form of `load`; numpy also rounds to nearest, ties to even."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(values: np.ndarray, dtype: str) -> np.ndarray:
    """Convert to flat float64; bfloat16 comes as uint16 bits, which are the upper half of a float32."""
    if dtype == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # damaged files contain signalling NaNs
        return np.ravel(values).astype(np.float64)
