"""Extra information about the gradients of a step, such as the rows that a batch contains several times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from optim.layouts.placement import relayout
from optim.native.direct import Held
from optim.precision import compute_dtype
from optim.summed_gradients import POWERS


@dataclass(frozen=True)
class Slices:
    """`IndexedSlices` before their sum: a gradient in `values`, in float32 at least, for each of `rows`."""

    values: Any
    rows: Any

    @classmethod
    def of(cls, gradient: tf.IndexedSlices) -> Slices:
        values, rows = tf.convert_to_tensor(gradient.values), tf.convert_to_tensor(gradient.indices)
        return cls(tf.cast(values, compute_dtype(values.dtype)), tf.cast(rows, tf.int64))

    def summed(self, power: str, count: int, layout: Any) -> Any:
        """Return the sums by row of that power of each gradient, for all `count` rows."""
        return relayout(tf.math.unsorted_segment_sum(POWERS[power](self.values), self.rows, count), layout)


@dataclass(frozen=True)
class GradientMetadata:
    """What was done to the gradients of a call before the step.

    Attributes:
      is_clipped: whether they are already divided by the loss scale, and clipped.
      slices: those whose gradients are squared one by one, by index of the variable.
      named: rows of `IndexedSlices` that were made dense, if other rows must not change, by index of the variable.
      held_tensors: the gradients as dtopt's own kernel has them, if it took them all while they were checked.
    """

    is_clipped: bool = False
    slices: Mapping[int, Slices] = field(default_factory=dict)
    named: Mapping[int, Any] = field(default_factory=dict)
    held_tensors: Held | None = None


UNCHANGED = GradientMetadata()
"""Gradients that nothing has changed."""
