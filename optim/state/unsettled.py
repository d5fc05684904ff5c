"""Steps for which it is still unknown whether a GPU left them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from optim.state.counter import Counter


class Unsettled:
    """The counters of such a step, with their values as if the step was made.

    Args:
      was_left_out: waits until the GPU knows whether there was no step, and returns it.
      counters: those that the step has moved. before: their values before it.
      leave_out: makes the changes of a step that is left out.
    """

    def __init__(
        self,
        was_left_out: Callable[[], bool],
        counters: Sequence[Counter],
        before: Sequence[Any],
        leave_out: Callable[[], None],
    ):
        self._was_left_out = was_left_out
        self._moved = [(c, old, c.peek()) for c, old in zip(counters, before, strict=True)]
        self._leave_out = leave_out

    def settle(self) -> None:
        """Wait for the GPU's result. If there was no step, correct the counters.

        Counters that have got other values since, for example from a checkpoint, keep these.
        """
        if not self._was_left_out() or any(counter.peek() != new for counter, _, new in self._moved):
            return
        for counter, old, new in self._moved:
            if old != new:
                counter.set(old)
        self._leave_out()
