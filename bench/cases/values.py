"""The input numbers of a case for every peer: initial parameters and gradients, the same for the same seed."""

from __future__ import annotations

import numpy as np

from bench.cases.case import Case
from bench.cases.sparse import Rows
from bench.cases.workloads import SPREAD


def parameter(case: Case, index: int) -> np.ndarray:
    """Return the initial value of tensor number `index`: float32, uniform in [-0.05, 0.05) unless the tensor has
    another spread. It is rounded to bfloat16 if the case has that dtype.
    """
    tensor = case.tensors[index]
    values = uniform(case, index, tensor.shape, stream=0)
    return values if tensor.spread == SPREAD else values * (values.dtype.type(tensor.spread / SPREAD))


def gradient(case: Case, index: int, which: int) -> np.ndarray | Rows:
    """Return gradient number `which` (0, 1, ...) of a tensor, from the same distribution: different steps get different
    gradients. It is rows for the tables of a sparse case.
    """
    if case.is_sparse(case.tensors[index]):
        return _rows(case, index, which)
    return uniform(case, index, case.tensors[index].shape, stream=1 + which)


def uniform(case: Case, index: int, shape: tuple[int, ...], stream: int) -> np.ndarray:
    """Return random values, so that no page stays the shared zero page and no arithmetic meets denormals."""
    generator = np.random.Generator(np.random.SFC64([case.seed, index, stream]))
    values = generator.random(shape, dtype=np.float32)
    values -= np.float32(0.5)
    values *= np.float32(0.1)
    return as_bfloat16(values) if case.options.dtype == "bfloat16" else values


def as_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 values to the nearest bfloat16, ties to even."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def _rows(case: Case, index: int, which: int) -> Rows:
    """Return gradient number `which` of a table."""
    shape = case.tensors[index].shape
    count = case.touched_rows(index)
    generator = np.random.Generator(np.random.SFC64([case.seed, index, 1 + which, 1]))
    indices = np.sort(generator.choice(shape[0], count, replace=False)).astype(np.int64)
    return Rows(indices, uniform(case, index, (count, *shape[1:]), stream=1 + which), shape)
