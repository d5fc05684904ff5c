"""float32 copies of float16 and bfloat16 variables, on which the rule works: `master_copies`.

The copy is the slot `master`; the variable is its rounding. Micikevicius et al., "Mixed Precision Training" (2018),
section 3.1: an update smaller than half the spacing of the variable's dtype would else be lost at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from optim import placement, slot_layout
from optim.errors import HyperparameterError
from optim.variables import SlotTable, Tracked

if TYPE_CHECKING:
    from optim.optimizer import Optimizer

LOW_PRECISION = (tf.float16, tf.bfloat16)


def parse(value: Any) -> bool:
    """Raises HyperparameterError."""
    if not isinstance(value, bool):
        raise HyperparameterError(f"master_copies must be True or False, got {value!r}")
    return value


def has_master(master_copies: bool, tracked: Tracked) -> bool:
    """Whether a variable gets a float32 copy under this option."""
    return master_copies and tracked.variable.dtype in LOW_PRECISION


def state_dtype(master_copies: bool, tracked: Tracked) -> tf.DType:
    """Dtype of what the rule works on: the slots, and the variable or its copy."""
    return tf.float32 if has_master(master_copies, tracked) else tracked.variable.dtype


def target(slots: SlotTable, tracked: Tracked) -> tf.Variable:
    """What a rule reads and updates: the float32 copy, or the variable where there is none."""
    master = slots.find(slot_layout.MASTER, tracked)
    return tracked.variable if master is None else master


def write(
    slots: SlotTable, tracked: Tracked, value: Any, relayout: Callable[[Any, Any], Any] = placement.relayout
) -> None:
    """Assign a value in the dtype of `target`, in any layout, to the copy, and its rounding to the variable."""
    master = slots.find(slot_layout.MASTER, tracked)
    if master is not None:
        master.assign(relayout(value, placement.layout_of(master)))
        value = tf.cast(value, tracked.variable.dtype)
    tracked.variable.assign(relayout(value, tracked.layout))


def refresh(optimizer: Optimizer, var_list: Sequence[Any] | None) -> None:
    """What `Optimizer.refresh_master_copies` does."""
    state = optimizer._state
    for tracked in state.tracked if var_list is None else [state.tracked[v] for v in var_list]:
        master = state.slots.find(slot_layout.MASTER, tracked)
        if master is not None:
            value = tf.cast(tracked.variable.read_value(), master.dtype)
            master.assign(placement.relayout(value, placement.layout_of(master)))
