"""A small forward and backward pass that uses the parameters of any workload, the same in every framework.

With x a fixed batch, the loss is the sum over matrices w of the mean of (x·w)², and over the other tensors of the mean
of their squares. It reads every parameter and writes every gradient, and multiplies matrices as dense layers do. It is
not a real model: it shows how a step performs after a backward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.cases.values import uniform

if TYPE_CHECKING:
    import numpy as np

    from bench.cases.case import Case

BATCH = 8
STREAM = 100


def inputs(case: Case) -> list[np.ndarray | None]:
    """Return the batch of each matrix, (BATCH, rows); None for tensors of other ranks."""
    return [
        uniform(case, i, (BATCH, tensor.shape[0]), STREAM) if len(tensor.shape) == 2 else None
        for i, tensor in enumerate(case.tensors)
    ]


def loss(parameters: list[Any], batches: list[Any], mean_square: Any) -> Any:
    """Return the loss; `mean_square` is the framework's, the rest are operators."""
    parts = [mean_square(p if x is None else x @ p) for p, x in zip(parameters, batches, strict=True)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
