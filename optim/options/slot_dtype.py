"""Slots in fewer bits: `slot_dtype`.

Which slots may be rounded is in the rule (`Slot.few_bits`). `"bfloat16"` rounds stochastically: `optim/bits/noise.py`.
`"int8"` keeps 8-bit codes and a scale for each block: `optim/bits/codes.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from optim import lazy, slot_layout
from optim.bits import codes
from optim.bits.storage import BFLOAT16, INT8, SLOT_DTYPES
from optim.errors import HyperparameterError, MismatchError
from optim.options.base import Option, Part
from optim.rule import VARIABLE, Rule, Slot

if TYPE_CHECKING:
    import tensorflow as tf

    from optim.layouts.policies import Placement
    from optim.state.state import State
    from optim.state.tracked import Tracked
else:
    tf = lazy.modules("tensorflow")

COMPUTED_IN_FLOAT32 = ("float32", "bfloat16", "float16")


class SlotDtype(Part):
    """In which dtype slots are stored, and how those in 8 bits are made."""

    options: ClassVar = {
        "slot_dtype": Option(
            None,
            'store the slots that a rule allows in fewer bits: "bfloat16", rounded stochastically, or "int8", as codes'
            f" of 8 bits with a scale for each block of {codes.BLOCK} elements; variables with fewer than"
            f" {codes.SMALLEST} elements keep theirs then. By default slots have the dtype of the variable",
        ),
    }

    def __init__(self, value: Any, state: State):
        if value is not None and value not in SLOT_DTYPES:
            known = ", ".join(map(repr, SLOT_DTYPES))
            raise HyperparameterError(f"slot_dtype must be {known} or None, got {value!r}")
        self.slot_dtype = value
        self._state = state

    def check(self, rules: Sequence[Rule], owner: str, *, has_lazy_rows: bool) -> None:
        """Raises HyperparameterError: no slot may be rounded, or blocks of codes would span rows that have to stay."""
        if self.slot_dtype == INT8 and has_lazy_rows:
            raise HyperparameterError(
                f"slot_dtype={INT8!r} excludes lazy_rows: a block of {codes.BLOCK} elements has one scale, so rows"
                f" cannot keep their slots. Use slot_dtype={BFLOAT16!r}, or leave lazy_rows out"
            )
        if self.slot_dtype is None or any(may_be_rounded(slot) for rule in rules for slot in rule.slots):
            return
        raise HyperparameterError(
            f"slot_dtype={self.slot_dtype!r} would have no effect: {owner} has no slot that may be stored in fewer"
            " bits. Leave it out; in a rule of your own, declare optim.Slot(..., few_bits=True)"
        )

    def dtype_of(self, slot: Slot, tracked: Tracked, usual: Any) -> Any:
        """The dtype in which a slot is stored; `usual`: without this option.

        Raises MismatchError: the variable is computed in more bits than float32.
        """
        if self.slot_dtype is None:
            return usual
        variable = tracked.variable
        name = self.name_of(slot, variable.dtype.name, math.prod(variable.shape.as_list()), str(tracked))
        return usual if name is None else tf.as_dtype(name)

    def name_of(self, slot: Slot, dtype: str, size: int, owner: str) -> str | None:
        """Return the name of the dtype in which a slot is stored in fewer bits; None if it is not.

        Args:
          dtype, size, owner: the dtype of its variable, the number of elements, and the name for messages.

        Raises MismatchError: the variable is computed in more bits than float32.
        """
        if self.slot_dtype is None or not may_be_rounded(slot):
            return None
        if dtype not in COMPUTED_IN_FLOAT32:
            raise MismatchError(
                f"slot_dtype={self.slot_dtype!r} is for variables of {', '.join(COMPUTED_IN_FLOAT32)}; {owner} is"
                f" {dtype}. Give it an optimizer without slot_dtype"
            )
        if self.slot_dtype == BFLOAT16:
            return BFLOAT16
        if size < codes.SMALLEST:
            return None
        return codes.UNSIGNED if slot.nonnegative else codes.SIGNED

    def add_codes(self, slot: Slot, tracked: Tracked, policy: Placement, dtype: Any) -> None:
        """Make a slot of codes, and their scales; every element has the slot's initial value, which is not negative."""
        fill = float(slot.initial)
        self._state.new_slot(slot.name, tracked, policy, fill=codes.code_of(bool(fill), dtype.name), dtype=dtype)
        blocks = codes.blocks_of(math.prod(tracked.variable.shape.as_list()))
        self._state.new_block_slot(slot_layout.scale_of(slot.name), tracked, blocks, fill)


def may_be_rounded(slot: Slot) -> bool:
    """Whether `slot_dtype` may store a slot in fewer bits."""
    return slot.few_bits and slot.like == VARIABLE and not isinstance(slot.initial, str)
