"""Which slots each optimizer of `optim` keeps for a variable, read from its own rule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from bench.cases.algorithms import Algorithm
from bench.cases.algorithms import algorithm as parse
from bench.cases.workloads import Tensor
from optim.rule import slot_dims


@cache
def algorithm(optimizer: str) -> Algorithm:
    """The optimizer that `-o` names, such as `adam:amsgrad=true`. Raises: UnknownNameError, OptionError."""
    return parse(optimizer)


@dataclass(frozen=True)
class SlotShape:
    """One slot of one variable: its name, and which dims of the variable it has."""

    name: str
    dims: tuple[int, ...]

    def is_whole(self, tensor: Tensor) -> bool:
        return len(self.dims) == len(tensor.shape)


def slots(optimizer: str, tensor: Tensor) -> list[SlotShape]:
    """The slots that the optimizer keeps for a variable."""
    rank = len(tensor.shape)
    found = [(slot.name, slot_dims(slot.like, rank)) for slot in algorithm(optimizer).rule.slots]
    if made_orthogonal(optimizer, tensor):
        found = [(name, dims) for name, dims in found if name != "v"]
    return [SlotShape(name, dims) for name, dims in found if dims is not None]


def made_orthogonal(optimizer: str, tensor: Tensor) -> bool:
    """Whether Muon itself updates this variable: matrices, embeddings left out. Others go to its Adam."""
    return algorithm(optimizer).name == "muon" and len(tensor.shape) == 2 and "embedding" not in tensor.name.lower()
