"""Gradients gathered over several calls, of which the mean makes a step: `gradient_accumulation_steps`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from optim import lazy, slot_layout
from optim.arguments import count, flag
from optim.options.base import Option, Part
from optim.precision import compute_dtype, constant

if TYPE_CHECKING:
    import tensorflow as tf

    from optim import devices
    from optim.layouts import placement
    from optim.layouts.policies import Placement
    from optim.native import library
    from optim.state import counter as counters
    from optim.state import row_gradient
    from optim.state.counter import Counter
    from optim.state.state import State
    from optim.state.tracked import Tracked
else:
    tf, devices, placement, library, counters, row_gradient = lazy.modules(
        *("tensorflow", "optim.devices", "optim.layouts.placement", "optim.native.library"),
        *("optim.state.counter", "optim.state.row_gradient"),
    )

NOTHING, ANYTHING = 0, 1
"""Marks of a sum: no gradient was added, or one that may be other than zero anywhere. A larger one identifies rows."""


@dataclass(frozen=True)
class Member:
    """A variable of the step that a window completes: the mark of its sum, whether that is taken row by row, and
    whether the variable is active: True, or a bool tensor. `in_step`: whether the step itself takes the rows."""

    tracked: Tracked
    mark: Any
    by_row: bool
    active: Any = True
    in_step: bool = False


class Accumulation(Part):
    """The sums of a window of calls.

    Which calls bring a gradient for which variable may differ: the slot `gathered` shows for each variable whether any
    did, so that a `tf.function` knows of the calls of another, and a checkpoint of the middle of a window is whole.
    Where only rows were added, which dtopt's kernel does in place, it is what the kernel knows these rows by
    (`gathered.h`); if it does not, as after a restart, the step looks at all of them.
    """

    options: ClassVar = {
        "gradient_accumulation_steps": Option(
            None,
            "the mean of this many gradients makes one step: clipping, decay, schedules and `iterations` go by"
            " real steps, >= 1",
        ),
        "count_calls": Option(
            False,
            "with `gradient_accumulation_steps`, whether a schedule is given the number of calls, and averages move at"
            " every call, as in Keras 3; else both go by real steps",
        ),
    }

    def __init__(self, steps: Any, count_calls: Any, state: State):
        self.gradient_accumulation_steps = None if steps is None else count("gradient_accumulation_steps", steps)
        self.count_calls = flag("count_calls", count_calls)
        self._state = state
        self._marks: dict[int, Counter] = {}
        if self.is_used:
            state.new_scalar(slot_layout.ACCUMULATED_STEPS, 0, "int64", "accumulated_steps")

    @property
    def steps(self) -> int:
        """How many gradients make one step."""
        return self.gradient_accumulation_steps or 1

    @property
    def is_used(self) -> bool:
        return self.steps > 1

    @property
    def goes_by_calls(self) -> bool:
        return self.is_used and self.count_calls

    def change(self, name: str, value: Any) -> None:
        if name == "count_calls":
            self.count_calls = flag(name, value)
        else:
            super().change(name, value)

    def count_of_step(self, iterations: Any) -> Any:
        """What a schedule is given in the step after `iterations` steps: that number, or the calls before it."""
        return iterations * self.steps + (self.steps - 1) if self.goes_by_calls else iterations

    def count_now(self) -> Any:
        """What a schedule is given by the next call: an integer eagerly, else a tensor."""
        keys = (slot_layout.ITERATIONS, *((slot_layout.ACCUMULATED_STEPS,) if self.goes_by_calls else ()))
        scalars = [self._state.scalars[key] for key in keys]
        iterations, *gathered = [int(s.numpy()) if tf.executing_eagerly() else s.read_value() for s in scalars]
        return iterations * self.steps + gathered[0] if gathered else iterations

    def add_slots(self, tracked: Tracked, policy: Placement) -> None:
        """Make the sum of a variable's gradients, and its mark."""
        if self.is_used:
            wide = compute_dtype(tracked.variable.dtype)
            self._state.new_slot(slot_layout.ACCUMULATED_GRADIENT, tracked, policy, dtype=wide)
            mark = {"dims": (), "dtype": tf.as_dtype(slot_layout.GATHERED_DTYPE), "is_counter": True}
            self._state.new_slot(slot_layout.GATHERED, tracked, placement.LIKE_VARIABLE, **mark)

    def takes_rows(self, tracked: Tracked) -> bool:
        """Whether a gradient may be a `RowGradient` here."""
        if not self.is_used:
            return True
        return row_gradient.can_gather(self._state.slots.get(slot_layout.ACCUMULATED_GRADIENT, tracked))

    def gather_eagerly(
        self, tracked: Sequence[Tracked], gradients: Sequence[Any], by_row: Callable[[Tracked], bool]
    ) -> list[Member]:
        """Add gradients to their sums. Returns the variables of the step that this completes; empty if it does not.

        `by_row` returns whether the step of a variable takes rows of its gradient.
        """
        counter = self._state.counter(slot_layout.ACCUMULATED_STEPS)
        count = int(counter.peek()) + 1
        self._add(tracked, gradients)
        devices.wait_for_pending()
        for item, gradient in zip(tracked, gradients, strict=True):
            mark = self._mark(item)
            if isinstance(gradient, row_gradient.RowGradient):
                before = constant(int(mark.peek()), tf.int64)
                mark.set(int(library.ops().dtopt_mark_rows(before=before, rows=gradient.rows)))
                row_gradient.add_rows(self._state.slots.get(slot_layout.ACCUMULATED_GRADIENT, item), gradient)
            elif mark.peek() != ANYTHING:
                mark.set(ANYTHING)
        if count < self.steps:
            counter.set(count)
            return []
        counter.set(0)
        marks = [(item, int(self._mark(item).peek())) for item in self._state.tracked]
        members = [Member(t, constant(m, tf.int64), m > ANYTHING and by_row(t)) for t, m in marks if m != NOTHING]
        for member in members:
            self._mark(member.tracked).set(NOTHING)
        return members

    def gather(self, tracked: Sequence[Tracked], gradients: Sequence[Any]) -> Any:
        """Add gradients to their sums in a graph. Returns a bool tensor: whether that completes a step."""
        self._add(tracked, gradients)
        for item, gradient in zip(tracked, gradients, strict=True):
            mark = self._state.slots.get(slot_layout.GATHERED, item)
            if isinstance(gradient, row_gradient.RowGradient) and not gradient.is_summed:
                row_gradient.add_in_function(
                    self._state.slots.get(slot_layout.ACCUMULATED_GRADIENT, item), mark, gradient
                )
            elif isinstance(gradient, row_gradient.RowGradient):
                marked = library.ops().dtopt_mark_rows(before=mark.read_value(), rows=gradient.rows)
                mark.assign(marked)
                with tf.control_dependencies([marked]):
                    row_gradient.add_rows(self._state.slots.get(slot_layout.ACCUMULATED_GRADIENT, item), gradient)
            else:
                mark.assign(tf.ones_like(mark.read_value()))
        steps = self._state.scalars[slot_layout.ACCUMULATED_STEPS]
        count = steps.read_value() + 1
        complete = count >= self.steps
        steps.assign(tf.where(complete, tf.zeros_like(count), count))
        return complete

    def members(self, tracked: Sequence[Tracked], gradients: Sequence[Any]) -> list[Member]:
        """All variables, active in the step that is complete if it has a gradient for them.

        That is True for those that are given one now; of the others the graph finds out, and forgets it for the next
        window.
        """
        now = {item.index: gradient for item, gradient in zip(tracked, gradients, strict=True)}
        members = []
        for item in self._state.tracked:
            variable, gradient = self._state.slots.get(slot_layout.GATHERED, item), now.get(item.index)
            by_row = isinstance(gradient, row_gradient.RowGradient)
            if isinstance(gradient, row_gradient.RowGradient) and not gradient.is_summed:  # the step forgets the mark
                members.append(Member(item, variable, True, in_step=True))
                continue
            mark = variable.read_value()
            active = item.index in now or mark > NOTHING
            members.append(Member(item, mark, by_row, active))
            variable.assign(tf.zeros_like(mark))
        return members

    def _add(self, tracked: Sequence[Tracked], gradients: Sequence[Any]) -> None:
        """Add those that are dense."""
        for item, gradient in zip(tracked, gradients, strict=True):
            if isinstance(gradient, row_gradient.RowGradient):
                continue
            total = self._state.slots.get(slot_layout.ACCUMULATED_GRADIENT, item)

            def add(gradient: Any, total: Any = total) -> None:
                total.assign_add(placement.relayout(tf.cast(gradient, total.dtype), placement.layout_of(total)))

            self._on(item, add, "add", gradient.dtype)(gradient)

    def _on(self, tracked: Tracked, function: Callable[..., Any], *key: Any) -> Callable[..., Any]:
        """A function of a variable's sum, on meshes a traced one: `layouts/cached_functions.py` explains why."""
        if not tf.executing_eagerly() or tracked.layout is None:
            return function
        traced: Callable[..., Any] = self._state.slots.traced((*key, tracked.index), function)
        return traced

    def _mark(self, tracked: Tracked) -> Counter:
        mark = self._marks.get(tracked.index)
        variable = self._state.slots.get(slot_layout.GATHERED, tracked)
        if mark is None or mark.variable is not variable:
            mark = self._marks[tracked.index] = counters.Counter(variable)
        return mark

    def take_mean(self, members: Sequence[Member], state_dtype: Callable[[Tracked], Any]) -> list[Any]:
        """Mean of the gathered gradients in the variables' layout; the sums start again at zero.

        Rows are those that any call named, and whose sum is not all zero. In the dtype of what the rule updates, but
        not in float16, which cannot hold what loss scaling makes of it.
        """
        means: list[Any] = []
        for member in members:
            item = member.tracked
            total = self._state.slots.get(slot_layout.ACCUMULATED_GRADIENT, item)
            if member.in_step:
                means.append(row_gradient.mean_in_function(total, member.mark, self.steps, item.variable.dtype))
                continue
            if member.by_row:
                rows = library.ops().dtopt_marked_rows(mark=member.mark, limit=int(total.shape[0]))
                sums = row_gradient.take_rows(total, rows) / self.steps
                mean = row_gradient.RowGradient(sums, rows, total.shape, item.variable.dtype)
                means.append(mean.without_zeros())
                continue
            dtype = state_dtype(item)

            def take(total: Any = total, dtype: Any = dtype, layout: Any = item.layout) -> Any:
                mean = total.read_value() / self.steps
                total.assign(tf.zeros_like(mean))
                mean = tf.cast(mean, compute_dtype(dtype) if dtype == tf.float16 else dtype)
                return placement.relayout(mean, layout)

            means.append(self._on(item, take, "take")())
        return means

    def mark_what_is_there(self) -> None:
        """Make marks of sums that were read from where there are no marks: what is not zero was gathered."""
        if not self.is_used or not int(self._state.counter(slot_layout.ACCUMULATED_STEPS).now()):
            return
        for item in self._state.tracked:
            total = self._state.slots.get(slot_layout.ACCUMULATED_GRADIENT, item)
            self._mark(item).set(int(bool(placement.to_host(total).any())))
