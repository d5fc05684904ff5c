"""Which slots each optimizer of `optim` keeps for a variable, read from its own rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.errors import UnknownNameError
from bench.workloads import Tensor
from optim.rule import Rule, slot_dims
from optim.rules.adadelta import AdadeltaRule
from optim.rules.adafactor import AdafactorRule
from optim.rules.adagrad import AdagradRule
from optim.rules.adam import AdamRule
from optim.rules.adamax import AdamaxRule
from optim.rules.ftrl import FtrlRule
from optim.rules.lamb import LambRule
from optim.rules.lion import LionRule
from optim.rules.muon import MuonRule
from optim.rules.nadam import NadamRule
from optim.rules.rmsprop import RMSpropRule
from optim.rules.sgd import SGDRule

RULES: Mapping[str, Callable[[], Rule]] = {
    "sgd": SGDRule,
    "momentum": lambda: SGDRule(keeps_momentum=True),
    "rmsprop": RMSpropRule,
    "rmsprop-momentum": lambda: RMSpropRule(keeps_momentum=True),
    "rmsprop-centered": lambda: RMSpropRule(centered=True),
    "rmsprop-centered-momentum": lambda: RMSpropRule(centered=True, keeps_momentum=True),
    "adagrad": AdagradRule,
    "adadelta": AdadeltaRule,
    "adam": AdamRule,
    "adam-amsgrad": lambda: AdamRule(amsgrad=True),
    "adamw": AdamRule,
    "adamax": AdamaxRule,
    "nadam": NadamRule,
    "ftrl": FtrlRule,
    "lion": LionRule,
    "adafactor": AdafactorRule,
    "lamb": LambRule,
    "muon": MuonRule,
}
"""Every optimizer, and those of its options that change what it keeps."""

EXTRA_ARRAYS: Mapping[str, int] = {"lamb": 3, "adafactor": 2}
"""Arrays that a rule of two passes reads again, beside gradient, parameter and slots: LAMB p, m and v for the second
pass, Adafactor g for its means and once more for the size of the step."""


def rule(optimizer: str) -> Rule:
    """The rule of that name. Raises: UnknownNameError."""
    if optimizer not in RULES:
        raise UnknownNameError(f"no optimizer is called {optimizer!r} in plans; there are: {', '.join(RULES)}")
    return RULES[optimizer]()


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
    found = [(slot.name, slot_dims(slot.like, rank)) for slot in rule(optimizer).slots]
    if made_orthogonal(optimizer, tensor):
        found = [(name, dims) for name, dims in found if name != "v"]
    return [SlotShape(name, dims) for name, dims in found if dims is not None]


def made_orthogonal(optimizer: str, tensor: Tensor) -> bool:
    """Whether Muon itself updates this variable: matrices, embeddings left out. Others go to its Adam."""
    return optimizer == "muon" and len(tensor.shape) == 2 and "embedding" not in tensor.name.lower()
