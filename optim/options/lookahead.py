"""Lookahead: slow weights that every few steps go part of the way to the fast ones, which start from there again.

    every k steps:  slow ← slow + α·(p − slow)        p ← slow

Zhang, Lucas, Hinton & Ba, "Lookahead Optimizer: k steps forward, 1 step back" (2019, arXiv:1907.08610), algorithm 1; as
`tfa.optimizers.Lookahead` of TensorFlow Addons 0.19, whose slot and arguments have the same names.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from optim.arguments import count
from optim.errors import HyperparameterError
from optim.hyperparameters import to_number
from optim.options.base import Option, Part
from optim.options.option_objects import from_mapping
from optim.options.rule_wrapper import RuleWrapper
from optim.rule import AS_VARIABLE, Arrays, Rule, Scalars, Slot

SLOW = "slow"


@dataclass(frozen=True)
class Lookahead:
    """How slow weights follow.

    Attributes:
      sync_period: k, every so many steps. >= 1.
      slow_step_size: α, how far they go. In [0, 1].

    Raises:
      HyperparameterError: out of range.
    """

    sync_period: int = 6
    slow_step_size: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "sync_period", count("sync_period", self.sync_period))
        number = to_number("slow_step_size", self.slow_step_size)
        if number is None or not 0 <= number <= 1:
            raise HyperparameterError(f"slow_step_size must be in [0, 1], got {self.slow_step_size!r}")
        object.__setattr__(self, "slow_step_size", number)


@dataclass(frozen=True)
class LookaheadRule(RuleWrapper):
    """A rule of fast weights, with the slow ones in the slot `slow`."""

    option: Lookahead

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (*self.rule.slots, Slot(SLOW, unit="variable", initial=AS_VARIABLE))

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        k, one = self.option.sync_period, xp.ones_like(step)
        syncs = xp.where(xp.equal(step - k * xp.floor(step / k), 0.0), one, 0.0 * one)
        values = self.rule.coefficients(xp, hyper, step)
        return {**values, "lookahead_syncs": syncs, "lookahead_share": syncs * self.option.slow_step_size}

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        inner = {name: slot for name, slot in slots.items() if name != SLOW}
        change, new = self.rule.update(xp, variable, gradient, inner, c)
        fast = variable + change
        slow = slots[SLOW] + c["lookahead_share"] * (fast - slots[SLOW])
        return change + c["lookahead_syncs"] * (slow - fast), {**new, SLOW: slow}


class SlowWeights(Part):
    """Whether there are slow weights, and how they follow."""

    options: ClassVar = {
        "lookahead": Option(
            None,
            "`Lookahead(sync_period=6, slow_step_size=0.5)`, or a mapping with its fields: every so many steps slow"
            " weights, in the slot `slow`, go part of the way to the variables, which start from there again (Zhang et"
            " al., 2019)",
        ),
    }

    def __init__(self, value: Any):
        self.lookahead = from_mapping(Lookahead, "lookahead", value)

    def config(self) -> dict[str, Any]:
        return {"lookahead": None if self.lookahead is None else asdict(self.lookahead)}

    def wrap(self, rule: Rule) -> Rule:
        """The rule of the optimizer out of that of its class."""
        return rule if self.lookahead is None else LookaheadRule(rule, self.lookahead)
