"""Placement of a slot: like its variable, sharded further (ZeRO-1), or as a callable decides.

An *axis* is a mesh axis, a *dim* a tensor dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.dtensor.python import api
from tensorflow.experimental import dtensor
from tensorflow.python import _pywrap_dtensor_device
from tensorflow.python.eager import context, core

from optim.errors import MismatchError
from optim.layouts import sharding
from optim.layouts.policies import LIKE_VARIABLE, ZERO1, Placement


def layout_of(variable: tf.Variable) -> dtensor.Layout | None:
    """Return the layout of a DVariable, None for a plain variable."""
    return getattr(variable, "layout", None)


class DTensorReader:
    """Layouts and local parts of eager DTensors, read from DTensor's device without the cost of its Python layer.

    Create one for each step: it looks the device up once, and not for every tensor.
    """

    def __init__(self) -> None:
        self._context = context.context()._handle
        self._device = api._dtensor_device()._device_info

    def layout_text(self, tensor: tf.Tensor) -> str | None:
        """Return `to_string()` of a DTensor's layout, None for other tensors; a tenth of the work of `fetch_layout`."""
        try:
            return _pywrap_dtensor_device.FetchLayout(self._context, tensor, self._device)
        except core._NotOkStatusException:
            return None

    def parts(self, tensor: tf.Tensor) -> Sequence[Any]:
        """Return the result of `dtensor.unpack` for a dense DTensor."""
        return _pywrap_dtensor_device.Unpack(self._context, tensor, self._device)


def slot_layout(placement: Placement, variable: tf.Variable, slot: str) -> dtensor.Layout | None:
    """Return the layout of a slot that is shaped like `variable`; None for a plain variable.

    Raises:
      MismatchError: a callable returned something that is not a layout of this variable's mesh and rank, or one that
        does not divide its shape.
    """
    layout = layout_of(variable)
    if layout is None or placement == LIKE_VARIABLE:
        return layout
    if placement == ZERO1:
        return zero1_layout(layout, variable.shape.as_list())
    assert callable(placement)
    chosen = placement(variable, slot)
    _check_fits(chosen, layout, variable, slot)
    return chosen


def zero1_layout(layout: dtensor.Layout, shape: list[int]) -> dtensor.Layout:
    """Return `layout` sharded further over the mesh axes that it leaves unused, see `sharding.zero1_specs`."""
    return dtensor.Layout(sharding.zero1_specs(layout.sharding_specs, axis_sizes(layout.mesh), shape), layout.mesh)


def axis_sizes(mesh: dtensor.Mesh) -> dict[str, int]:
    """Return the size by name of every axis, in the order of the mesh."""
    return {name: mesh.dim_size(name) for name in mesh.dim_names}


def is_finer(layout: dtensor.Layout, coarse: dtensor.Layout) -> bool:
    """Whether `layout` only shards further what `coarse` leaves whole; always true for layouts of two ranks."""
    pairs = zip(layout.sharding_specs, coarse.sharding_specs, strict=False)
    return layout.rank != coarse.rank or all(b == a or coarse.num_shards(d) == 1 for d, (a, b) in enumerate(pairs))


def only_dims(layout: dtensor.Layout | None, dims: Sequence[int]) -> dtensor.Layout | None:
    """Return the layout of a tensor that keeps only these dims; of a dim that is there twice, the first is divided."""
    if layout is None:
        return None
    return dtensor.Layout(sharding.only_dims(layout.sharding_specs, dims, dtensor.UNSHARDED), layout.mesh)


def _check_fits(chosen: Any, layout: dtensor.Layout, variable: tf.Variable, slot: str) -> None:
    where = f"slot_placement for slot {slot!r} of variable {variable.name!r}"
    if not isinstance(chosen, dtensor.Layout):
        raise MismatchError(f"{where} must return a dtensor.Layout, got {chosen!r}")
    if chosen.mesh != layout.mesh:
        raise MismatchError(f"{where} returned a layout of another mesh; the variable is on {layout.mesh.dim_names}")
    if chosen.rank != layout.rank:
        raise MismatchError(f"{where} returned a layout of rank {chosen.rank}, the variable has rank {layout.rank}")
    for dim, (size, axis) in enumerate(zip(variable.shape.as_list(), chosen.sharding_specs, strict=True)):
        if axis != dtensor.UNSHARDED and size % chosen.mesh.dim_size(axis):
            raise MismatchError(
                f"{where} shards dim {dim} of size {size} over axis {axis!r} of size {chosen.mesh.dim_size(axis)},"
                " which does not divide it"
            )


def from_host(array: np.ndarray, layout: dtensor.Layout | None) -> Any:
    """Return a numpy array as a tensor in `layout`: each device gets only its own part."""
    if layout is None:
        return tf.constant(array)
    mesh = layout.mesh
    parts = []
    for device, place in zip(mesh.local_devices(), mesh.local_device_locations(), strict=True):
        index = []
        for size, axis in zip(array.shape, layout.sharding_specs, strict=True):
            length = size if axis == dtensor.UNSHARDED else size // mesh.dim_size(axis)
            start = 0 if axis == dtensor.UNSHARDED else place[axis] * length
            index.append(slice(start, start + length))
        with tf.device(device):
            parts.append(tf.constant(array[tuple(index)]))
    return dtensor.pack(parts, layout)


def beside(variable: Any) -> AbstractContextManager[Any]:
    """Place new plain variables like this one; a mesh, and a `tf.distribute` strategy, place their variables
    themselves."""
    if layout_of(variable) is not None or isinstance(variable, tf.distribute.DistributedValues):
        return nullcontext()
    device: AbstractContextManager[Any] = tf.device(variable.device)
    return device


def new_variable(value: Any, dtype: Any, name: str, layout: dtensor.Layout | None) -> tf.Variable:
    """Return a non-trainable variable: a DVariable with `layout`, or a plain variable if it is None.

    Args:
      value: a numpy array or Python number, or a tensor of the variable's kind (on the layout's mesh or without
        one).
    """
    if layout is None:
        return tf.Variable(value, dtype=dtype, trainable=False, name=name)
    if not dtensor.is_dtensor(value):
        value = dtensor.copy_to_mesh(
            tf.convert_to_tensor(value, dtype=dtype), dtensor.Layout.replicated(layout.mesh, layout.rank)
        )
    return _d_variable(relayout(value, layout), dtype, name)


def move_to_mesh(variable: tf.Variable, mesh: dtensor.Mesh) -> None:
    """Convert a plain variable to a DVariable, replicated on a mesh; it stays the same Python object."""
    if layout_of(variable) is not None:
        return
    layout = dtensor.Layout.replicated(mesh, variable.shape.rank)
    value = dtensor.copy_to_mesh(variable.read_value(), layout)
    name, trainable = variable._shared_name, variable.trainable
    variable.__class__ = dtensor.DVariable
    with tf.name_scope(""):
        variable.__init__(value, name=name, trainable=trainable)


def move_to_device(variable: tf.Variable, device: str) -> None:
    """Move a plain variable to another device; it stays the same Python object."""
    if variable.device == device:
        return
    value, name, trainable = variable.read_value(), variable._shared_name, variable.trainable
    with tf.device(device), tf.name_scope(""):
        variable.__init__(value, name=name, trainable=trainable)


def filled_variable(shape: list[int], fill: float, dtype: Any, name: str, layout: dtensor.Layout | None) -> tf.Variable:
    """Return a variable filled with one number, made shard by shard: no array of the full shape exists anywhere."""
    if layout is None:
        return tf.Variable(_fill(shape, fill, dtype), trainable=False, name=name)
    parts = []
    for device in layout.mesh.local_devices():
        with tf.device(device):
            parts.append(_fill(local_shape(shape, layout), fill, dtype))
    return _d_variable(dtensor.pack(parts, layout), dtype, name)


def _d_variable(value: Any, dtype: Any, name: str) -> tf.Variable:
    """Return a non-trainable DVariable, which gets its name only after its creation.

    TensorFlow passes the name of a variable to the op that makes its resource, and DTensor compiles an op for every
    name, in about 10 ms. Variables that are made under one name share the compiled op.
    """
    scope = tf.get_current_name_scope()
    with tf.name_scope(""):
        variable = dtensor.DVariable(value, dtype=dtype, trainable=False, name="slot")
    variable._handle_name = variable.handle._name = f"{scope}/{name}:0" if scope else f"{name}:0"
    return variable


def local_shape(shape: Sequence[int], layout: dtensor.Layout) -> list[int]:
    """Return the shape of one device's part of a tensor."""
    return sharding.local_shape(shape, layout.sharding_specs, axis_sizes(layout.mesh))


def _fill(shape: Sequence[int], fill: float, dtype: Any) -> tf.Tensor:
    return tf.zeros(shape, dtype) if fill == 0 else tf.fill(shape, tf.constant(fill, dtype))


def relayout(value: Any, layout: dtensor.Layout | None) -> Any:
    """Return `value` in `layout`; return it unchanged if it has that layout or there is no mesh."""
    if layout is None:
        return value
    if tf.executing_eagerly() and dtensor.fetch_layout(value) == layout:
        return value
    return dtensor.relayout(value, layout)


def relayout_bits(value: Any, layout: dtensor.Layout | None) -> Any:
    """Change the layout of an eager float tensor, like `relayout`, and keep every bit.

    DTensor gathers shards by adding them to zeros (TF 2.21), which converts −0 to 0; it does not change integers.
    """
    if layout is None or dtensor.fetch_layout(value) == layout:
        return value
    bits = tf.bitcast(value, {2: tf.uint16, 4: tf.int32, 8: tf.int64}[value.dtype.size])
    wide = tf.cast(bits, tf.int32) if bits.dtype == tf.uint16 else bits  # on GPUs it does not gather 16-bit integers
    return tf.bitcast(tf.cast(dtensor.relayout(wide, layout), bits.dtype), value.dtype)


def to_host(variable: Any) -> Any:
    """Return the whole value of a variable or DTensor as a numpy array, whatever its layout."""
    value = variable.read_value() if isinstance(variable, tf.Variable) else variable
    if dtensor.is_dtensor(value):
        value = dtensor.relayout(value, dtensor.Layout.replicated(dtensor.fetch_layout(value).mesh, value.shape.rank))
    return value.numpy()
