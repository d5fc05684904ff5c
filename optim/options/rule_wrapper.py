"""What an option makes of a rule when it has a part in the step of each variable: a rule around the rule.

So it is in every executor, and in the kernel, which is generated from what `update` does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optim.rule import Arrays, Rule, Scalars, Slot


@dataclass(frozen=True)
class RuleWrapper(Rule):
    """A rule as it is; subclasses do something before or after."""

    rule: Rule

    @property
    def slots(self) -> tuple[Slot, ...]:
        return self.rule.slots

    @property
    def scalars(self) -> Mapping[str, float]:
        return self.rule.scalars

    @property
    def elementwise(self) -> bool:
        return self.rule.elementwise

    @property
    def keeps_lazy_slots(self) -> bool:
        return self.rule.keeps_lazy_slots

    @property
    def places_weight_decay(self) -> bool:
        return self.rule.places_weight_decay

    @property
    def has_constants(self) -> bool:
        return self.rule.has_constants

    def gathers(self, slots: Collection[str]) -> bool:
        return self.rule.gathers([slot.name for slot in self.rule.slots if slot.name in slots])

    def slot_dims(self, slot: Slot, shape: Sequence[int], names: Sequence[str]) -> tuple[int, ...] | None:
        return self.rule.slot_dims(slot, shape, names)

    def weight_decay(self, option: float | None, shape: Sequence[int], names: Sequence[str]) -> float | None:
        return self.rule.weight_decay(option, shape, names)

    def constants(self, shape: Sequence[int], names: Sequence[str]) -> Mapping[str, float]:
        return self.rule.constants(shape, names)

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        return self.rule.coefficients(xp, hyper, step)

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        return self.rule.update(xp, variable, gradient, slots, c)
