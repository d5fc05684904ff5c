"""Conversion of `IndexedSlices` to the form that the kernel takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim.devices import needs_ops
from optim.errors import MismatchError
from optim.executors import native
from optim.executors.gradient_metadata import Slices
from optim.layouts.placement import relayout
from optim.native import direct, library
from optim.native.generate import Program
from optim.precision import compute_dtype
from optim.state.row_gradient import RowGradient
from optim.state.tracked import Tracked


def row_gradient(
    gradient: tf.IndexedSlices,
    tracked: Tracked,
    *,
    looks_at_sums: bool,
    sorts: bool = False,
    powers: Sequence[int] = (),
    has_all: bool = False,
) -> RowGradient:
    """Return the rows of `IndexedSlices` in ascending order; repeated ones are added up, in float32 at least.

    Args:
      looks_at_sums: whether norms of gradients, or whether they are finite, matter.
      sorts: whether, if they do not, the kernel may sort them in its step, or now for the local executor.
      powers: powers of each gradient to add up as well, as a `Program` lists them; then only the kernel does it.
      has_all: on a GPU, whether to return all rows of the table, with zeros for those without a gradient.

    Raises:
      MismatchError: they do not fit the variable. Inside a `tf.function`, a wrong index raises when it runs.
    """
    shape = tracked.variable.shape
    values, indices = _checked(gradient, tracked)
    if native.on_gpu(tracked):
        return _on_gpu(values, indices, tracked, powers, has_all=has_all)
    if tracked.layout is not None and not tf.executing_eagerly():
        return _on_mesh(values, indices, tracked, looks_at_sums)
    values, indices, device = _on_one_device(values, indices, tracked)
    sorts = sorts and not looks_at_sums
    if sorts and not tf.executing_eagerly():
        return RowGradient(values, tf.cast(indices, tf.int64), shape, tracked.variable.dtype, is_summed=False)
    if sorts and _can_sort(values, indices):
        try:
            sorted_rows = direct.sort(values, indices, int(shape[0]), powers)
        except RuntimeError as error:
            raise MismatchError(f"the gradient of {tracked}: {error}") from None
        return RowGradient(values, indices, shape, tracked.variable.dtype, sorted=sorted_rows)
    wide = tf.float64 if values.dtype == tf.float64 else tf.float32
    try:
        with tf.device(device):
            sums, rows = library.ops().dtopt_sum_rows(values=values, indices=indices, limit=int(shape[0]), W=wide)
    except tf.errors.InvalidArgumentError as error:
        raise MismatchError(f"the gradient of {tracked}: {error.message}") from None
    if powers:  # the step adds these up; the indices are checked now
        return RowGradient(values, tf.cast(indices, tf.int64), shape, tracked.variable.dtype, is_summed=False)
    return RowGradient(sums, rows, shape, tracked.variable.dtype)


def _checked(gradient: tf.IndexedSlices, tracked: Tracked) -> tuple[Any, Any]:
    """Return values and indices of a gradient, the values in float64 if the variable is. Raises: MismatchError."""
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
    return values, indices


def _on_gpu(values: Any, indices: Any, tracked: Tracked, powers: Sequence[int], *, has_all: bool) -> RowGradient:
    shape, slices_ = tracked.variable.shape, tf.IndexedSlices(values, indices)
    sums, table, more = table_on_gpu(slices_, tracked, is_dense=has_all, powers=powers)
    if has_all:
        with tf.device(native.device_of(tracked)):
            table = tf.range(shape[0], dtype=tf.int64)
    return RowGradient(sums, table, shape, tracked.variable.dtype, powers=more if powers else None)


def _on_one_device(values: Any, indices: Any, tracked: Tracked) -> tuple[Any, Any, str]:
    """Return values and indices on one device of the variable, and that device. Raises: MismatchError."""
    device = tracked.variable.device
    if tracked.layout is None and "CUSTOM" in values.device:
        raise MismatchError(f"the gradient of {tracked} is on a mesh, the variable is not")
    if tracked.layout is not None:
        values = _local(values, tracked)
        indices = _local(indices, tracked) if dtensor.is_dtensor(indices) else indices
        device = tracked.layout.mesh.local_devices()[0]
    indices = indices if indices.dtype in (tf.int32, tf.int64) else tf.cast(indices, tf.int64)
    return values, indices, device


def table_on_gpu(
    gradient: tf.IndexedSlices, tracked: Tracked, *, is_dense: bool, powers: Sequence[int] = ()
) -> tuple[Any, Any, Any]:
    """Return the sums of the gradients by row of a table, summed on the GPU in the order of the input, without a wait.

    Returns:
      The sums in float32 at least, and the row of each, -1 for unused ones; or the sums of all rows, and nothing. Then
      the sums of `powers`, one power after the other.
    """
    values, indices = tf.convert_to_tensor(gradient.values), tf.convert_to_tensor(gradient.indices)
    with tf.device(native.device_of(tracked)):
        indices = tf.cast(indices, tf.int64)
        order = tf.argsort(indices, stable=True)
        results = library.ops().dtopt_table(
            values=values,
            named=tf.gather(indices, order),
            order=tf.cast(order, tf.int64),
            W=compute_dtype(values.dtype),
            rows=int(tracked.variable.shape[0]),
            is_dense=is_dense,
            powers=powers,
            of=tracked.name,
        )
    return tuple(results)


def adds_up_on_gpu(tracked: Tracked) -> bool:
    """Whether `table_on_gpu` is possible for a variable here."""
    return native.adds_up_on(tracked) and not needs_ops()


def moved_rows(gradient: Any, tracked: Tracked) -> RowGradient:
    """Return the rows of a dense gradient on a GPU that have a nonzero number."""
    shape = tracked.variable.shape
    with tf.device(native.device_of(tracked)):
        moves = tf.reduce_any(tf.not_equal(gradient, 0), axis=list(range(1, shape.rank)))
        table = tf.where(moves, tf.range(shape[0], dtype=tf.int64), tf.constant(-1, tf.int64))
        return RowGradient(tf.cast(gradient, compute_dtype(gradient.dtype)), table, shape, tracked.variable.dtype)


def squared_rows(
    slices: Slices, tracked: Tracked, program: Program | None, *, sorts: bool, has_all: bool
) -> RowGradient:
    """Return rows whose gradients, already scaled and clipped, are squared one by one, in the form of the program.

    `sorts`, `has_all`: as for `row_gradient`.
    """
    assert program is not None
    values = tf.cast(slices.values, compute_dtype(tracked.variable.dtype))
    squares = tf.IndexedSlices(values, slices.rows)
    return row_gradient(squares, tracked, looks_at_sums=False, sorts=sorts, powers=program.powers, has_all=has_all)


def _can_sort(values: Any, indices: Any) -> bool:
    is_here = "CPU:" in values.device and "CPU:" in indices.device
    return direct.available() and values.dtype in (tf.float32, tf.float64) and is_here


def _local(tensor: Any, tracked: Tracked) -> Any:
    """Return the whole of an eager tensor on the mesh of a variable."""
    assert tracked.layout is not None
    if not dtensor.is_dtensor(tensor):
        raise MismatchError(
            f"the gradient of {tracked} is not on the variable's mesh ({tracked.layout.mesh.dim_names}); compute it"
            " from DTensors, or put it there with dtensor.copy_to_mesh"
        )
    mesh = dtensor.fetch_layout(tensor).mesh
    if mesh != tracked.layout.mesh:
        raise MismatchError(
            f"the gradient of {tracked} is on mesh {mesh.dim_names} {mesh.shape()}, the variable on"
            f" {tracked.layout.mesh.dim_names} {tracked.layout.mesh.shape()}"
        )
    return dtensor.unpack(relayout(tensor, dtensor.Layout.replicated(mesh, tensor.shape.rank)))[0]


def _on_mesh(values: Any, indices: Any, tracked: Tracked, looks_at_sums: bool) -> RowGradient:
    """Send all rows, and all their columns, to every device."""
    layout, shape = tracked.layout, tracked.variable.shape
    assert layout is not None
    values = relayout(values, dtensor.Layout.replicated(layout.mesh, values.shape.rank))
    rows = relayout(tf.cast(indices, tf.int64), dtensor.Layout.replicated(layout.mesh, 1))
    if looks_at_sums:
        values, rows = _summed(values, rows)
    return RowGradient(values, rows, shape, tracked.variable.dtype, is_summed=False)


def _summed(values: Any, rows: Any) -> tuple[Any, Any]:
    """Return the same gradient, with as many rows, summed by row; surplus rows repeat one of them with zeros.

    It uses only ops that DTensor supports, whose shapes it knows.
    """
    place, count = tf.unique(rows)[1], tf.shape(rows)[0]
    times = tf.math.unsorted_segment_sum(tf.ones_like(rows), place, count)
    named = tf.math.unsorted_segment_sum(rows, place, count) // tf.maximum(times, 1)
    named = tf.where(tf.equal(times, 0), tf.reduce_max(rows), named)
    return tf.math.unsorted_segment_sum(tf.cast(values, compute_dtype(values.dtype)), place, count), named


def are_possible(layout: dtensor.Layout | None) -> bool:
    """Whether devices have some columns of some rows: no dim but the first two is divided."""
    return layout is None or all(layout.num_shards(dim) == 1 for dim in range(2, layout.rank))


def has_whole_rows(layout: dtensor.Layout | None) -> bool:
    """Whether devices have all columns of the rows that they have."""
    return layout is None or all(layout.num_shards(dim) == 1 for dim in range(1, layout.rank))
