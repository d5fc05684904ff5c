"""The slots that an optimizer makes for variables: its rule's, and those of its options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from optim import slot_layout
from optim.executors.work import compute_dtype
from optim.master_copies import has_master, state_dtype
from optim.variables import Tracked

if TYPE_CHECKING:
    from optim.optimizer import Optimizer


def add_slots(optimizer: Optimizer, new: Sequence[Tracked]) -> None:
    """Make the slots of variables that have none yet, slot by slot."""
    state, settings = optimizer._state, optimizer._settings
    for slot in optimizer._rule.slots if optimizer._rule is not None else ():
        for tracked in new:
            dims = optimizer._slot_dims(slot, tracked)
            if dims is not None:
                dtype = state_dtype(settings.master_copies, tracked)
                state.new_slot(slot.name, tracked, settings.slot_placement, fill=slot.initial, dims=dims, dtype=dtype)
    for tracked in new:
        _add_option_slots(optimizer, tracked)


def _add_option_slots(optimizer: Optimizer, tracked: Tracked) -> None:
    state, settings = optimizer._state, optimizer._settings
    policy, dtype = settings.slot_placement, state_dtype(settings.master_copies, tracked)
    copies = [slot_layout.AVERAGE] if settings.ema.use_ema else []
    copies += [slot_layout.MASTER] if has_master(settings.master_copies, tracked) else []
    for slot in copies:
        value = tf.cast(tracked.variable.read_value(), dtype)
        state.new_slot(slot, tracked, policy, value=value, dtype=dtype)
    if settings.steps > 1:
        wide = compute_dtype(tracked.variable.dtype)
        state.new_slot(slot_layout.ACCUMULATED_GRADIENT, tracked, policy, dtype=wide)
