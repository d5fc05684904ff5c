"""The gradient of a table: the rows that a batch named, each once, and nothing for the others; and sums of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from optim.devices import handles_of
from optim.layouts.placement import layout_of
from optim.layouts.shard_slices import region_of
from optim.native import library, spmd
from optim.native.direct import Held
from optim.precision import float64s
from optim.state import mesh_groups


@dataclass(frozen=True)
class Window:
    """The mean of rows over several calls, in a function on a mesh; the step computes it from their sum and clears the
    sum.

    Attributes:
      number: of the sum and its mark, see `mesh_groups`. calls: their number. mesh: the mesh of the sum.
      replicas: how many devices have each part of the sum.
      scale, limit: the factor of the mean, and the limit to which it is clipped after that.
    """

    number: Any
    calls: int
    mesh: dtensor.Mesh
    replicas: int
    scale: Any = 1.0
    limit: float = math.inf


@dataclass(frozen=True)
class RowGradient:
    """`IndexedSlices` summed by row: row `rows[k]` of the variable has the gradient `sums[k]`, in float32 or float64.

    In a function each device may still have to sum them, for the rows that it has.

    Attributes:
      sums: all columns, also if devices have some; eagerly without a mesh, wherever the variable is.
      rows: int64, ascending, each once. shape: of the variable. dtype: of the original gradient.
      is_summed: False in a function, if the sum is still to be computed.
      sorted: the result of dtopt's own kernel for the local executor; then sums and rows are unchanged inputs.
      window: the place of the rows, if it is set; then sums and rows are empty.
      powers: on a GPU, the sums of the powers that the rule needs of each, one power after the other.
    """

    sums: Any
    rows: Any
    shape: tf.TensorShape
    dtype: tf.DType
    is_summed: bool = True
    sorted: Held | None = None
    window: Window | None = None
    powers: Any = None

    @property
    def places(self) -> Held | tuple[Any, ...]:
        """The tensors that the local executor gives the kernel with the sums."""
        if self.sorted is not None:
            return self.sorted
        return (self.rows,) if self.powers is None else (self.rows, self.powers)

    def with_sums(self, sums: Any) -> RowGradient:
        return replace(self, sums=sums)

    def without_zeros(self) -> RowGradient:
        """Return only the rows, already summed, that have a nonzero number."""
        is_other = tf.reduce_any(tf.not_equal(self.sums, 0), axis=list(range(1, self.shape.rank)))
        return replace(self, sums=tf.boolean_mask(self.sums, is_other), rows=tf.boolean_mask(self.rows, is_other))


def at_hand(variable: Any) -> Any:
    """Return the variable, or its copy in the current replica of `Strategy.extended.update`; None if it has no
    handle."""
    if isinstance(variable, tf.distribute.DistributedValues):
        replica = distribute_lib.get_update_replica_id()
        variable = None if replica is None else variable.values[replica]
    return variable if isinstance(variable, BaseResourceVariable) else None


def can_gather(total: tf.Variable) -> bool:
    """Whether rows can be added to a sum of gradients: on a mesh if devices have some columns of some rows."""
    if layout_of(total) is not None:
        return None not in _regions(total) and (tf.executing_eagerly() or spmd.available())
    return at_hand(total) is not None


def add_rows(total: tf.Variable, gradient: RowGradient) -> None:
    """Add rows to a sum of gradients, in place."""
    for device, handle, region in _parts(total):
        with tf.device(device):
            sums = tf.cast(gradient.sums, total.dtype)
            library.ops().dtopt_add_rows(total=handle, sums=sums, rows=gradient.rows, region=region)


def add_in_function(total: tf.Variable, mark: tf.Variable, gradient: RowGradient) -> None:
    """In a function on a mesh: add rows to the parts of a sum on the devices, and change its mark."""
    tf.compat.v1.get_default_graph().capture(mark.handle)  # this orders other reads and writes of either
    number, limit = mesh_groups.number_of(total, [mark]), int(total.shape[0])
    library.ops().dtopt_gather(window=number, values=gradient.sums, rows=gradient.rows, limit=limit)


def mean_in_function(total: tf.Variable, mark: tf.Variable, calls: int, dtype: tf.DType) -> RowGradient:
    """Return the mean that a step in such a function takes out of it."""
    layout = total.layout
    parts = math.prod(layout.num_shards(dim) for dim in range(layout.rank))
    number = mesh_groups.number_of(total, [mark])
    window = Window(number, calls, layout.mesh, layout.mesh.size // parts)
    return RowGradient(tf.zeros([], total.dtype), None, total.shape, dtype, window=window)


def window_arguments(gradients: Sequence[RowGradient]) -> dict[str, Any]:
    """Return the arguments of the kernel's ops for gradients that have a window."""
    windows = [gradient.window for gradient in gradients if gradient.window is not None]
    return {
        "windows": [window.number for window in windows],
        "meanings": float64s([n for window in windows for n in (window.scale, window.limit)]),
        "limits": [gradient.shape[0] for gradient in gradients],
        "calls": max((window.calls for window in windows), default=1),
    }


def window_sums(gradients: Sequence[RowGradient]) -> list[tuple[Any, Any]]:
    """Return the sum of squares of each gradient that has a window, and zero, or NaN if a number in it is not
    finite."""
    windows = [gradient.window for gradient in gradients if gradient.window is not None]
    if not windows:
        return []

    def write(into: Any) -> None:
        library.ops().dtopt_window_squares(into=into, **window_arguments(gradients))

    sums = mesh_groups.summed(windows[0].mesh, [len(windows), 2], write)
    return [(sums[k, 0] / window.replicas, sums[k, 1]) for k, window in enumerate(windows)]


def clear_windows(gradients: Sequence[Any]) -> None:
    """Discard gradients that no step uses: those that have a window start again at zero."""
    with_window = [g for g in gradients if isinstance(g, RowGradient) and g.window is not None]
    if with_window:
        library.ops().dtopt_window_clear(**window_arguments(with_window))


def take_rows(total: tf.Variable, rows: Any) -> Any:
    """Return these rows of a sum of gradients, and set them to zero."""
    row_gradients, seen = [], set()
    for device, handle, region in _parts(total):
        with tf.device(device):
            sums = library.ops().dtopt_take_rows(total=handle, rows=rows, region=region, T=total.dtype)
        if region not in seen:  # other devices may have the same
            row_gradients.append(sums)
        seen.add(region)
    whole = row_gradients[0] if len(row_gradients) == 1 else tf.add_n(row_gradients)
    return tf.reshape(whole, [-1, *total.shape[1:]])


def _regions(total: tf.Variable) -> list[tuple[int, int, int] | None]:
    layout = layout_of(total)
    places: Any = [{}] if layout is None else layout.mesh.local_device_locations()
    return [region_of(total.shape.as_list(), layout, None, place) for place in places]


def _parts(total: tf.Variable) -> Iterator[tuple[str, Any, Any]]:
    """Yield each device, its part, and the position where the part begins."""
    if layout_of(total) is None:
        variable = at_hand(total)
        return iter([(variable.device, variable.handle, _regions(total)[0])])
    handles = handles_of(total)
    return zip([handle.device for handle in handles], handles, _regions(total), strict=True)
