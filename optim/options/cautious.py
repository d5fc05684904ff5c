"""Cautious updates: only elements move whose step agrees with the sign of the gradient.

    φ = 1 where Δ·g < 0, else 0        Δ ← Δ · φ / max(mean(φ), 0.001)

Δ is the change that the algorithm computed and g is its gradient. The mean is that of the whole variable, so that the
step keeps its size. Slots are those of the algorithm without it.

Liang, Chen, Liu & Liu, "Cautious Optimizers: Improving Training with One Line of Code" (2024, arXiv:2411.16085),
algorithm 1. The scale is that of the authors' code today (github.com/kyleliang919/C-Optim, `c_adamw.py`) and of timm
(`caution=True`); the paper's is size / (sum(φ) + 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from optim.arguments import boolean
from optim.options.base import Option, Part
from optim.options.rule_wrapper import RuleWrapper
from optim.rule import Arrays, Rule, Scalars

SMALLEST_MEAN = 1e-3


@dataclass(frozen=True)
class CautiousRule(RuleWrapper):
    """A rule that moves no element against its gradient."""

    @property
    def elementwise(self) -> bool:
        return False

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        change, new = self.rule.update(xp, variable, gradient, slots, c)
        one = xp.ones_like(variable)
        mask = xp.where(xp.sign(change) * xp.sign(gradient) < 0, one, 0.0 * one)
        share = xp.reduce_mean(mask)
        smallest = SMALLEST_MEAN * xp.ones_like(share)
        return change * (mask / xp.maximum(share, smallest)), new


class Caution(Part):
    """Whether updates are cautious."""

    options: ClassVar = {
        "cautious": Option(
            False,
            "True moves only the elements whose step has the sign opposite to the gradient's, and divides the step by"
            " the share of these elements (Liang et al., 2024)",
        ),
    }

    def __init__(self, value: Any):
        self.cautious = boolean("cautious", value)

    def wrap(self, rule: Rule) -> Rule:
        """The rule of the optimizer out of that of its class."""
        return CautiousRule(rule) if self.cautious else rule
