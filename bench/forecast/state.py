"""The slots that each optimizer of `optim` keeps for a variable, read from its own rule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from bench.cases.algorithms import Algorithm
from bench.cases.algorithms import algorithm as parse
from bench.cases.workloads import Tensor
from optim.options.slot_dtype import may_be_rounded


@cache
def algorithm(optimizer: str) -> Algorithm:
    """Return the optimizer that `-o` names, such as `adam:amsgrad=true`. Raises: UnknownNameError, OptionError."""
    return parse(optimizer)


@dataclass(frozen=True)
class SlotShape:
    """One slot of one variable: its name, and which dims of the variable it has."""

    name: str
    dims: tuple[int, ...]
    can_be_rounded: bool = False
    """Whether `slot_dtype` may store it in fewer bits."""

    def is_whole(self, tensor: Tensor) -> bool:
        return len(self.dims) == len(tensor.shape)


def slots(optimizer: str, tensor: Tensor) -> list[SlotShape]:
    """Return the slots that the optimizer keeps for a variable."""
    known = algorithm(optimizer)
    rounded = {slot.name for slot in known.rule.slots if may_be_rounded(slot)}
    return [SlotShape(name, dims, name in rounded) for name, dims in known.slots_of(tensor).items()]
