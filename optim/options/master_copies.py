"""float32 copies of float16 and bfloat16 variables, on which the rule works: `master_copies`.

The copy is the slot `master`; the variable is its rounding. Micikevicius et al., "Mixed Precision Training" (2018),
section 3.1: an update smaller than half the spacing of the variable's dtype would else be lost at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from optim import lazy, slot_layout
from optim.arguments import boolean
from optim.errors import UnsupportedError
from optim.options.base import Option, Part

if TYPE_CHECKING:
    import tensorflow as tf

    from optim.layouts import placement
    from optim.layouts.policies import Placement
    from optim.state.slots import SlotTable
    from optim.state.state import State
    from optim.state.tracked import Tracked
else:
    tf, placement = lazy.modules("tensorflow", "optim.layouts.placement")

LOW_PRECISION = ("float16", "bfloat16")


class MasterCopies(Part):
    """Whether there are copies, and of what."""

    options: ClassVar = {
        "master_copies": Option(
            False,
            "keep float32 copies of float16 and bfloat16 variables in a slot `master`, with float32 slots and"
            " averages. Steps act on the copies; the variables are their roundings",
        ),
    }

    def __init__(self, value: Any, state: State):
        self.master_copies = boolean("master_copies", value)
        self._state = state

    def state_dtype(self, tracked: Tracked) -> Any:
        """Dtype of what the rule works on: the slots, and the variable or its copy."""
        return tf.float32 if self._has_copy(tracked) else tracked.variable.dtype

    def _has_copy(self, tracked: Tracked) -> bool:
        return self.master_copies and tracked.variable.dtype in LOW_PRECISION

    def add_slot(self, tracked: Tracked, policy: Placement) -> None:
        """Make the copy of a variable that is to have one."""
        if self._has_copy(tracked):
            self._state.new_copy(slot_layout.MASTER, tracked, policy, tf.float32)

    def refresh_master_copies(self, var_list: Sequence[Any] | None = None) -> None:
        """Take the copies of `master_copies` from variables (None: all) that were assigned to from outside.

        Raises:
          UnsupportedError: there are no copies.
        """
        if not self.master_copies:
            raise UnsupportedError("there are no master copies; make the optimizer with master_copies=True")
        known = self._state.tracked
        for tracked in known if var_list is None else [known[variable] for variable in var_list]:
            master = self._state.slots.find(slot_layout.MASTER, tracked)
            if master is not None:
                value = tf.cast(tracked.variable.read_value(), master.dtype)
                master.assign(placement.relayout(value, placement.layout_of(master)))


def target(slots: SlotTable, tracked: Tracked) -> tf.Variable:
    """What a rule reads and updates: the float32 copy, or the variable without a copy."""
    master = slots.find(slot_layout.MASTER, tracked)
    return tracked.variable if master is None else master


def write(slots: SlotTable, tracked: Tracked, value: Any, relayout: Callable[[Any, Any], Any] | None = None) -> None:
    """Assign a value in the dtype of `target`, in any layout, to the copy, and its rounding to the variable."""
    relayout = relayout or placement.relayout
    master = slots.find(slot_layout.MASTER, tracked)
    if master is not None:
        master.assign(relayout(value, placement.layout_of(master)))
        value = tf.cast(value, tracked.variable.dtype)
    tracked.variable.assign(relayout(value, tracked.layout))
