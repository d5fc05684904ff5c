"""Check the gradients of a call, and make them dense in the shape, dtype and layout of their variables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor
from tensorflow.python.framework.ops import EagerTensor

from optim.errors import GradientsError, MismatchError
from optim.executors.rows import adds_up_on_gpu, table_on_gpu
from optim.layouts import placement
from optim.native import direct
from optim.native.direct import Held
from optim.precision import compute_dtype
from optim.state.tracked import Tracked, TrackedList, plain_name, unwrap


def split_pairs(grads_and_vars: Any) -> tuple[list[Any], list[Any]]:
    """Return the gradients and the variables of (gradient, variable) pairs.

    Raises:
      GradientsError: not an iterable of pairs.
    """
    try:
        pairs = list(grads_and_vars)
    except TypeError as error:
        raise GradientsError(
            f"grads_and_vars must be an iterable of (gradient, variable) pairs, got {type(grads_and_vars).__name__}"
        ) from error
    if set(map(type, pairs)) == {tuple} and set(map(len, pairs)) == {2}:  # the usual case, without a loop in Python
        gradients, variables = zip(*pairs, strict=True)
        return list(gradients), list(variables)
    for position, pair in enumerate(pairs):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise GradientsError(
                f"grads_and_vars[{position}] must be a (gradient, variable) pair, got {type(pair).__name__}"
                f" {str(pair)[:60]!r}"
            )
    return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]


def check_distinct(variables: Sequence[Any]) -> None:
    """Raise GradientsError: not a variable, or the same variable twice."""
    seen: set[int] = set()
    for value in variables:
        variable = unwrap(value)
        if id(variable) in seen:
            raise GradientsError(f"grads_and_vars names variable {plain_name(value)!r} twice; add its gradients up")
        seen.add(id(variable))


def check_dtypes(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Raise MismatchError: a variable that has a gradient contains integers, booleans or strings."""
    for gradient, value in zip(gradients, variables, strict=True):
        dtype = unwrap(value).dtype
        if gradient is not None and not (dtype.is_floating or dtype.is_complex):
            raise MismatchError(
                f"variable {plain_name(value)!r} is {dtype.name}, and a step moves floating-point variables only;"
                " leave it out"
            )


def check_complex(tracked: Sequence[Tracked], clips: bool, scales: bool) -> None:
    """Raise MismatchError: a variable is complex, and gradients are clipped, or tested by `loss_scale`."""
    item = next((item for item in tracked if item.variable.dtype.is_complex), None)
    if item is not None and (clips or scales):
        raise MismatchError(
            f"variable {item} is {item.variable.dtype.name}, and complex gradients cannot be"
            f" {'clipped' if clips else 'tested for loss_scale'}; switch that off, or use another optimizer"
            " for such variables"
        )


def check_pairs(grads_and_vars: Any) -> list[tuple[Any, Any]]:
    """Return `grads_and_vars` as a list of pairs.

    Raises:
      GradientsError: not an iterable of pairs, or the same variable twice.
    """
    gradients, variables = split_pairs(grads_and_vars)
    check_distinct(variables)
    return list(zip(gradients, variables, strict=True))


def conform_all(
    gradients: Sequence[Any], tracked: TrackedList, keeps_float32: bool = False, by_kernel: bool = False
) -> tuple[list[Any], Held | None]:
    """Apply `conform` to each; the usual eager gradient, which needs no change, costs little.

    Args:
      by_kernel: whether this is eager, and dtopt's own kernel can check them.

    Returns:
      The gradients, and the same as dtopt's own kernel has them, if it checked them and no gradient needs a change.
    """
    if not by_kernel:
        conform_them = _conform_by_one if tf.executing_eagerly() else _conform_in_graph
        return conform_them(gradients, tracked, keeps_float32), None
    result = direct.hold_if(gradients, tracked.expected)
    conformed = list(gradients)
    if isinstance(result, Held):
        return conformed, result
    for i in result:
        conformed[i] = conform(gradients[i], tracked[i], keeps_float32)
    return conformed, None


def _conform_in_graph(gradients: Sequence[Any], tracked: Sequence[Tracked], keeps_float32: bool) -> list[Any]:
    return [conform(g, t, keeps_float32) for g, t in zip(gradients, tracked, strict=True)]


def _conform_by_one(gradients: Sequence[Any], tracked: Sequence[Tracked], keeps_float32: bool) -> list[Any]:
    """Convert gradients eagerly, without the kernel."""
    on_mesh = any(item.layout is not None for item in tracked)
    reader = placement.DTensorReader() if on_mesh else None

    def fits(gradient: Any, item: Tracked) -> bool:
        if type(gradient) is not EagerTensor or gradient._datatype_enum() != item.dtype_number:
            return False
        if gradient._shape_tuple() != item.shape:
            return False
        if item.layout is None:  # a DTensor is on a custom device; asking DTensor is slow
            return "CUSTOM" not in gradient.device
        assert reader is not None
        return reader.layout_text(gradient) == item.layout_text

    return [g if fits(g, t) else conform(g, t, keeps_float32) for g, t in zip(gradients, tracked, strict=True)]


def checked_when_run(gradients: Sequence[Any], tracked: Sequence[Tracked]) -> tuple[list[Any], list[Any]]:
    """Return the gradients of a graph, with checks at run time if the graph does not know all of their shapes."""
    passed, checks = list(gradients), []
    for i, gradient in enumerate(gradients):
        if not gradient.shape.is_fully_defined():
            name = re.sub(r"[^A-Za-z0-9_.]", "_", f"gradient_of_{tracked[i].name}")
            passed[i] = tf.ensure_shape(gradient, tracked[i].variable.shape, name=name)
            checks.append(passed[i])
    return passed, checks


def conform(gradient: Any, tracked: Tracked, keeps_float32: bool = False) -> Any:
    """Return a dense gradient of the variable's shape, dtype and layout.

    A function pins the layout. If slots are sharded further, DTensor would compute the gradient in the layout of the
    slots, and it cannot compile every product of the program in that layout.

    `IndexedSlices` are made dense; repeated indices add up, in float32 at least. Floating dtypes are cast to the
    variable's. With `keeps_float32`, if the gradient is added up or used in float32, a float32 gradient of a float16 or
    bfloat16 variable keeps its dtype.

    Raises:
      MismatchError: shape, dtype or mesh differ. GradientsError: not a tensor.
    """
    if isinstance(gradient, tf.IndexedSlices):
        keeps_float32 = keeps_float32 or adds_up_on_gpu(tracked)  # the kernel takes the sums as they are
        gradient = densify(gradient, tracked)
    try:
        gradient = gradient if isinstance(gradient, tf.Tensor) else tf.convert_to_tensor(gradient)
    except (TypeError, ValueError) as error:
        raise GradientsError(f"the gradient of {tracked} is no tensor: {type(gradient).__name__}") from error
    dtype = tracked.variable.dtype
    if not gradient.shape.is_compatible_with(tracked.variable.shape):
        raise MismatchError(
            f"the gradient of {tracked} has shape {gradient.shape}, the variable {tracked.variable.shape}"
        )
    is_wide = keeps_float32 and gradient.dtype == compute_dtype(dtype)
    if gradient.dtype != dtype and not is_wide:
        if not (gradient.dtype.is_floating and dtype.is_floating):
            raise MismatchError(
                f"the gradient of {tracked} is {gradient.dtype.name}, the variable {dtype.name}; cast it"
            )
        gradient = tf.cast(gradient, dtype)  # as Keras 3 does
    return _on_mesh(gradient, tracked) if tf.executing_eagerly() else placement.relayout(gradient, tracked.layout)


def densify(gradient: tf.IndexedSlices, tracked: Tracked) -> tf.Tensor:
    """Return the dense form of `IndexedSlices` of a variable: rows with the same index are added, in float32 at
    least."""
    if tracked.variable.shape.rank == 0:
        raise MismatchError(f"the gradient of {tracked} is IndexedSlices, but the variable is a scalar")
    if adds_up_on_gpu(tracked):
        return table_on_gpu(gradient, tracked, is_dense=True)[0]
    rows = tracked.variable.shape[0]
    indices = tf.convert_to_tensor(gradient.indices)  # `IndexedSlices` does not convert tuples and arrays
    if tf.executing_eagerly():  # TensorFlow would silently drop a negative index
        named = placement.to_host(indices)
        outside = named[(named < 0) | (named >= rows)]
        if outside.size:
            raise MismatchError(f"the gradient of {tracked} is for row {outside[0]}, the variable has {rows} rows")
    values = tf.convert_to_tensor(gradient.values)
    return tf.math.unsorted_segment_sum(tf.cast(values, compute_dtype(values.dtype)), indices, rows)


def _on_mesh(gradient: Any, tracked: Tracked) -> Any:
    layout = tracked.layout
    if not dtensor.is_dtensor(gradient):
        if layout is None:
            return gradient
        raise MismatchError(
            f"the gradient of {tracked} is not on the variable's mesh ({layout.mesh.dim_names}); compute it from"
            " DTensors, or put it there with dtensor.copy_to_mesh"
        )
    own_layout = dtensor.fetch_layout(gradient)
    if layout is not None and own_layout == layout:
        return gradient
    if layout is None:
        raise MismatchError(
            f"the gradient of {tracked} is on a mesh ({own_layout.mesh.dim_names}), the variable is not"
        )
    if own_layout.mesh != layout.mesh:
        raise MismatchError(
            f"the gradient of {tracked} is on mesh {own_layout.mesh.dim_names} {own_layout.mesh.shape()},"
            f" the variable on {layout.mesh.dim_names} {layout.mesh.shape()}"
        )
    return dtensor.relayout(gradient, layout)
