"""Rows that a batch has several times, of variables on no mesh: updated once more where each gradient is to be squared.

The executors take a gradient's sums. So before a step the repeated rows are read, and after it they are written anew:
that costs what these rows cost, whatever updates the others. Under XLA, on meshes, and for rules that look at whole
tensors, the portable executor computes with `Each` instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorflow as tf

from optim import slot_layout
from optim.executors import one_op, portable
from optim.executors.apart import Each, Slices
from optim.executors.work import Work, averaged
from optim.options.master_copies import target
from optim.rule import Rule
from optim.state.row_gradient import at_hand
from optim.state.slots import SlotTable
from optim.state.tracked import Tracked


def is_possible(rule: Rule | None, tracked: Tracked, slots: SlotTable) -> bool:
    """Whether rows of a variable can be updated by themselves, here and now."""
    return not why_never(rule, tracked, slots) and not one_op.needs_ops() and at_hand(tracked.variable) is not None


def why_never(rule: Rule | None, tracked: Tracked, slots: SlotTable) -> str:
    """Why rows of a variable cannot be updated by themselves; empty if they can, but for XLA."""
    if rule is None or not rule.elementwise:
        return "the rule looks at whole tensors"
    if tracked.mesh is not None:
        return f"{tracked} is on a mesh"
    own = slots.of(tracked, [slot.name for slot in rule.slots]).items()
    other = next((name for name, slot in own if slot.shape != tracked.variable.shape), None)
    return "" if other is None else f"slot {other!r} of {tracked} has another shape"


def begin(work: Work) -> tuple[Work, list[Redone]]:
    """Before a step: what is left to the executors, and what is to be finished after them."""
    if not work.slices:
        return work, []
    possible = [
        not work.only_ops and work.apart(i) is not None and is_possible(work.rule, tracked, work.slots)
        for i, tracked in enumerate(work.tracked)
    ]
    if not any(possible):
        return work, []
    found = [Redone(work, i) for i, is_mine in enumerate(possible) if is_mine]
    rest = [None if is_mine else slices for is_mine, slices in zip(possible, work.slices, strict=True)]
    return replace(work, slices=rest), [each for each in found if each.has_rows]


class Redone:
    """The repeated rows of variable number `i`, as they are before the step."""

    def __init__(self, work: Work, i: int):
        self._work = work
        self._i = i
        slices, tracked = work.apart(i), work.tracked[i]
        assert slices is not None
        assert work.rule is not None
        self._rows, self._slices = _repeated(slices)
        self.has_rows = not tf.executing_eagerly() or bool(tf.size(self._rows))
        """False where that is known: there are none."""
        self._variable = at_hand(target(work.slots, tracked))
        self._slots = {n: at_hand(s) for n, s in work.slots.of(tracked, [s.name for s in work.rule.slots]).items()}
        self._average = at_hand(work.slots.get(slot_layout.AVERAGE, tracked)) if work.has_averages else None
        if self.has_rows:
            self._old = self._variable.sparse_read(self._rows)
            self._old_slots = {name: slot.sparse_read(self._rows) for name, slot in self._slots.items()}
            self._old_average = None if self._average is None else self._average.sparse_read(self._rows)

    def finish(self) -> None:
        """After the step: write what it should have made of them."""
        work, tracked = self._work, self._work.tracked[self._i]
        count = tf.size(self._rows)
        sums = tf.math.unsorted_segment_sum(self._slices.values, self._slices.rows, count)
        gradient = Each(sums, lambda power: self._slices.summed(power, count, None))
        value, new = portable.stepped(work, self._i, gradient, self._old, self._old_slots)
        for name, slot in self._slots.items():
            self._write(slot, new[name])
        if self._average is not None:
            average = averaged(self._old_average, value, work.ema_momentum)
            self._write(self._average, average)
            value = tf.where(work.overwrite, average, value)
        self._write(self._variable, value)
        rounding = at_hand(tracked.variable)
        if rounding is not self._variable:
            self._write(rounding, tf.cast(value, rounding.dtype))

    def _write(self, variable: Any, value: Any) -> None:
        variable.scatter_update(tf.IndexedSlices(value, self._rows))


def _repeated(slices: Slices) -> tuple[Any, Slices]:
    """The rows that come several times, and their slices, with positions among these rows for rows."""
    named, place, times = tf.unique_with_counts(slices.rows)
    many = times > 1
    wanted = tf.gather(many, place)
    positions = tf.gather(tf.cumsum(tf.cast(many, tf.int64)) - 1, place)
    return tf.boolean_mask(named, many), Slices(
        tf.boolean_mask(slices.values, wanted), tf.boolean_mask(positions, wanted)
    )
