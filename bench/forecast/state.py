"""The slots that each optimizer of `optim` keeps for a variable, read from its own rule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from bench.cases.algorithms import Algorithm
from bench.cases.algorithms import algorithm as parse
from bench.cases.workloads import Tensor


@cache
def algorithm(optimizer: str) -> Algorithm:
    """Return the optimizer that `-o` names, such as `adam:amsgrad=true`. Raises: UnknownNameError, OptionError."""
    return parse(optimizer)


@dataclass(frozen=True)
class SlotShape:
    """One slot of one variable: its name, and which dims of the variable it has."""

    name: str
    dims: tuple[int, ...]

    def is_whole(self, tensor: Tensor) -> bool:
        return len(self.dims) == len(tensor.shape)


def slots(optimizer: str, tensor: Tensor) -> list[SlotShape]:
    """Return the slots that the optimizer keeps for a variable."""
    return [SlotShape(name, dims) for name, dims in algorithm(optimizer).slots_of(tensor).items()]
