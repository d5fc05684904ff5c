"""Gradients gathered over several calls, of which the mean makes a step: `gradient_accumulation_steps`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from optim import slot_layout
from optim.arguments import count
from optim.devices import wait_for_pending
from optim.layouts import placement
from optim.options.part import Option, Part
from optim.precision import compute_dtype
from optim.state.counter import Counter
from optim.state.state import State
from optim.state.tracked import Tracked


class Accumulation(Part):
    """The sums of a window of calls.

    Which calls bring a gradient for which variable may differ: the slot `gathered` says of each variable whether any
    did, so that a `tf.function` knows of the calls of another, and a checkpoint of the middle of a window is whole.
    """

    options: ClassVar = {
        "gradient_accumulation_steps": Option(
            None,
            "the mean of this many gradients makes one step: clipping, decay, schedules and `iterations` go by"
            " real steps, >= 1",
        ),
    }

    def __init__(self, steps: Any, state: State):
        self.gradient_accumulation_steps = None if steps is None else count("gradient_accumulation_steps", steps)
        self._state = state
        self._marks: dict[int, Counter] = {}
        if self.is_used:
            state.new_scalar(slot_layout.ACCUMULATED_STEPS, 0, tf.int64, "accumulated_steps")

    @property
    def steps(self) -> int:
        """How many gradients make one step."""
        return self.gradient_accumulation_steps or 1

    @property
    def is_used(self) -> bool:
        return self.steps > 1

    def add_slots(self, tracked: Tracked, policy: placement.Placement) -> None:
        """Make the sum of a variable's gradients, and its mark."""
        if self.is_used:
            wide = compute_dtype(tracked.variable.dtype)
            self._state.new_slot(slot_layout.ACCUMULATED_GRADIENT, tracked, policy, dtype=wide)
            mark = {"dims": (), "dtype": tf.as_dtype(slot_layout.GATHERED_DTYPE)}
            self._state.new_slot(slot_layout.GATHERED, tracked, placement.LIKE_VARIABLE, **mark)

    def gather_eagerly(self, tracked: Sequence[Tracked], gradients: Sequence[Any]) -> list[Tracked]:
        """Add gradients to their sums. Returns the variables of the step that this completes; none if it does not."""
        counter = self._state.counter(slot_layout.ACCUMULATED_STEPS)
        count = int(counter.peek()) + 1
        self._add(tracked, gradients)
        wait_for_pending()
        for item in tracked:
            if not self._mark(item).peek():
                self._mark(item).set(1)
        if count < self.steps:
            counter.set(count)
            return []
        counter.set(0)
        members = [t for t in self._state.tracked if self._mark(t).peek()]
        for item in members:
            self._mark(item).set(0)
        return members

    def gather(self, tracked: Sequence[Tracked], gradients: Sequence[Any]) -> Any:
        """Add gradients to their sums in a graph. Returns a bool tensor: whether that completes a step."""
        self._add(tracked, gradients)
        for item in tracked:
            mark = self._state.slots.get(slot_layout.GATHERED, item)
            mark.assign(tf.ones_like(mark.read_value()))
        steps = self._state.scalars[slot_layout.ACCUMULATED_STEPS]
        count = steps.read_value() + 1
        complete = count >= self.steps
        steps.assign(tf.where(complete, tf.zeros_like(count), count))
        return complete

    def members(self, now: Sequence[Tracked]) -> tuple[list[Tracked], list[Any]]:
        """All variables, and for each whether a step that is complete has a gradient for it.

        That is True for those `now` has one for; of the others the graph finds out, and forgets it for the next window.
        """
        tracked, here = list(self._state.tracked), {item.index for item in now}
        active = []
        for item in tracked:
            mark = self._state.slots.get(slot_layout.GATHERED, item)
            active.append(True if item.index in here else mark.read_value() > 0)
            mark.assign(tf.zeros_like(mark.read_value()))
        return tracked, active

    def _add(self, tracked: Sequence[Tracked], gradients: Sequence[Any]) -> None:
        for item, gradient in zip(tracked, gradients, strict=True):
            total = self._state.slots.get(slot_layout.ACCUMULATED_GRADIENT, item)
            total.assign_add(placement.relayout(tf.cast(gradient, total.dtype), placement.layout_of(total)))

    def _mark(self, tracked: Tracked) -> Counter:
        found = self._marks.get(tracked.index)
        variable = self._state.slots.get(slot_layout.GATHERED, tracked)
        if found is None or found.variable is not variable:
            found = self._marks[tracked.index] = Counter(variable)
        return found

    def take_mean(self, tracked: Sequence[Tracked], state_dtype: Callable[[Tracked], tf.DType]) -> list[Any]:
        """Mean of the gathered gradients in the variables' layout; the sums start again at zero.

        In the dtype of what the rule updates, but not in float16, which cannot hold what loss scaling makes of it.
        """
        means = []
        for item in tracked:
            total = self._state.slots.get(slot_layout.ACCUMULATED_GRADIENT, item)
            dtype = state_dtype(item)
            mean = total.read_value() / self.steps
            mean = tf.cast(mean, compute_dtype(dtype) if dtype == tf.float16 else dtype)
            means.append(placement.relayout(mean, item.layout))
            total.assign(tf.zeros_like(total))
        return means

    def mark_what_is_there(self) -> None:
        """Make marks of sums that were read from where there are no marks: what is not zero was gathered."""
        if not self.is_used or not int(self._state.counter(slot_layout.ACCUMULATED_STEPS).now()):
            return
        for item in self._state.tracked:
            total = self._state.slots.get(slot_layout.ACCUMULATED_GRADIENT, item)
            self._mark(item).set(int(bool(placement.to_host(total).any())))
