"""The least number of bytes that a step must move: every array read or written once, in one fused pass in place.

A tensor costs a read and a write of itself and of each slot, and a read of its gradient. Options add to it:

- a norm reads the gradients once more (its factor joins the step);
- a moving average is read and written;
- with n accumulated gradients, each but one costs a read of itself, and a read and a write of the sum.

Weight decay and clipping by value join the pass at no cost. A rule that needs whole tensors reads them again
(`Algorithm.further_reads`).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.cases.case import Case
    from bench.cases.workloads import Tensor


def slot_elements(case: Case, tensor: Tensor) -> int:
    """Return the elements of the slots of a tensor."""
    return sum(prod(tensor.shape[dim] for dim in dims) for dims in case.algorithm.slots_of(tensor).values())


def tensor_bytes(case: Case, tensor: Tensor) -> int:
    """Return the least traffic in bytes of a step of one tensor with a dense gradient."""
    options, size = case.options, tensor.elements
    moved = 3 * size + 2 * slot_elements(case, tensor) + case.algorithm.further_reads * size
    if options.clip is not None and not options.clip.startswith("value"):
        moved += size
    if options.ema is not None:
        moved += 2 * size
    moved += 3 * size * (options.accumulate - 1)
    return moved * case.itemsize


def bytes_per_parameter(case: Case) -> float:
    """Return the mean over the workload."""
    return sum(tensor_bytes(case, tensor) for tensor in case.tensors) / case.elements


def touched_bytes(case: Case) -> int | None:
    """Return the least traffic if only the rows of sparse gradients are updated; None in a dense case."""
    if case.options.sparse_rows is None:
        return None
    total = 0
    for index, tensor in enumerate(case.tensors):
        part = case.touched_rows(index) / tensor.shape[0] if case.is_sparse(tensor) else 1.0
        total += round(tensor_bytes(case, tensor) * part)
    return total


def working_set(case: Case, on_mesh: bool) -> int:
    """Return the bytes of parameters, gradients, slots, averages and sums."""
    arrays = 2 + (case.options.ema is not None) + (case.options.accumulate > 1)
    slots = sum(slot_elements(case, tensor) for tensor in case.tensors) / case.elements
    return round(case.updated_elements(on_mesh) * case.itemsize * (arrays + slots))
