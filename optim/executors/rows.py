"""The gradient of a table: the rows that a batch named, each once, and nothing for the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim.errors import MismatchError
from optim.layouts.placement import relayout
from optim.native import library
from optim.state.tracked import Tracked


@dataclass(frozen=True)
class RowGradient:
    """`IndexedSlices` summed up: row `rows[k]` of the variable has the gradient `sums[k]`, in float32 or float64.

    On a mesh they are yet to be summed up, by each device for the rows that it has.

    Attributes:
      rows: int64, ascending, each once. shape: of the variable. dtype: of the gradient that was given.
      starts: on a mesh, the first row of each device's part.
    """

    sums: Any
    rows: Any
    shape: tf.TensorShape
    dtype: tf.DType
    starts: Any = None

    def with_sums(self, sums: Any) -> RowGradient:
        return replace(self, sums=sums)

    def dense(self) -> Any:
        """The whole gradient, zero in all other rows."""
        whole = tf.scatter_nd(self.rows[:, tf.newaxis], self.sums, tf.cast(self.shape.as_list(), tf.int64))
        return tf.cast(whole, self.dtype)


def row_gradient(gradient: tf.IndexedSlices, tracked: Tracked) -> RowGradient:
    """The rows of `IndexedSlices` in ascending order; repeated ones are added up, in float32 at least.

    Raises:
      MismatchError: they do not fit the variable. Inside a `tf.function`, an index that does not raises when it runs.
    """
    shape = tracked.variable.shape
    values, indices = tf.convert_to_tensor(gradient.values), tf.convert_to_tensor(gradient.indices)
    if shape.rank == 0:
        raise MismatchError(f"the gradient of {tracked} is IndexedSlices, but the variable is a scalar")
    if not values.shape[1:].is_compatible_with(shape[1:]):
        raise MismatchError(f"the gradient of {tracked} has rows of shape {values.shape[1:]}, the variable {shape[1:]}")
    if not values.dtype.is_floating:
        raise MismatchError(f"the gradient of {tracked} is {values.dtype.name}; cast it")
    if (values.dtype == tf.float64) != (tracked.variable.dtype == tf.float64):
        values = tf.cast(values, tracked.variable.dtype)
    if tracked.layout is not None:
        return _on_mesh(values, indices, tracked)
    indices = indices if indices.dtype in (tf.int32, tf.int64) else tf.cast(indices, tf.int64)
    wide = tf.float64 if values.dtype == tf.float64 else tf.float32
    try:
        with tf.device(tracked.variable.device):
            sums, rows = library.ops().dtopt_sum_rows(values=values, indices=indices, limit=int(shape[0]), W=wide)
    except tf.errors.InvalidArgumentError as error:
        raise MismatchError(f"the gradient of {tracked}: {error.message}") from None
    return RowGradient(sums, rows, shape, tracked.variable.dtype)


def _on_mesh(values: Any, indices: Any, tracked: Tracked) -> RowGradient:
    """All rows to every device, their columns as the table's are divided."""
    layout, shape = tracked.layout, tracked.variable.shape
    assert layout is not None
    first, *others = layout.sharding_specs
    values = relayout(values, dtensor.Layout([dtensor.UNSHARDED, *others], layout.mesh))
    rows = relayout(tf.cast(indices, tf.int64), dtensor.Layout.replicated(layout.mesh, 1))
    parts = layout.num_shards(0)
    starts = tf.constant([part * (int(shape[0]) // parts) for part in range(parts)], tf.int64)
    return RowGradient(
        values, rows, shape, tracked.variable.dtype, relayout(starts, dtensor.Layout([first], layout.mesh))
    )
