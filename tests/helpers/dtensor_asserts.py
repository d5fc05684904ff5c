"""Assertions on DVariables, DTensors and plain tensors: layout, dtype, shape, values, and every replica."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor


def layout_of(value: Any) -> dtensor.Layout | None:
    """The layout of a DVariable or (eager) DTensor, None for anything plain."""
    if isinstance(value, tf.Variable):
        return getattr(value, "layout", None)
    return dtensor.fetch_layout(value) if dtensor.is_dtensor(value) else None


def parts_of(value: Any) -> list[tuple[tuple[slice, ...], np.ndarray]]:
    """Every device's part as (where it belongs in the whole, its value)."""
    layout = layout_of(value)
    tensor = value.read_value() if isinstance(value, tf.Variable) else value
    if layout is None:
        return [((), tensor.numpy())]
    mesh, parts = layout.mesh, []
    for place, part in zip(mesh.local_device_locations(), dtensor.unpack(tensor), strict=True):
        where = []
        for size, axis in zip(tensor.shape, layout.sharding_specs, strict=True):
            length = size if axis == dtensor.UNSHARDED else size // mesh.dim_size(axis)
            start = 0 if axis == dtensor.UNSHARDED else place[axis] * length
            where.append(slice(start, start + length))
        parts.append((tuple(where), part.numpy()))
    return parts


def value_of(value: Any) -> np.ndarray:
    """The whole value; raises AssertionError if replicas disagree."""
    parts = parts_of(value)
    if layout_of(value) is None:
        return np.asarray(parts[0][1])
    whole = np.zeros(value.shape, parts[0][1].dtype)
    for where, part in parts:
        whole[where] = part
    for where, part in parts:
        np.testing.assert_array_equal(whole[where], part, err_msg="replicas of one shard differ")
    return whole


def assert_dtensor_equal(
    actual: Any,
    expected: Any,
    layout: dtensor.Layout | None,
    *,
    dtype: Any = None,
    rtol: float = 0.0,
    atol: float = 0.0,
    what: str = "",
) -> None:
    """`actual` has this layout (None: is on no mesh), global shape, dtype and value, on every device.

    Args:
      dtype: expected dtype; that of `expected` if None.
      rtol, atol: as in `numpy.testing.assert_allclose`; 0 and 0 ask for equal bits.
    """
    expected = np.asarray(expected)
    found = layout_of(actual)
    assert (found is None) == (layout is None), f"{what}: layout {found}, expected {layout}"
    if layout is not None:
        assert found.mesh == layout.mesh, f"{what}: mesh {found.mesh}, expected {layout.mesh}"
        assert list(found.sharding_specs) == list(layout.sharding_specs), f"{what}: {found}, expected {layout}"
    assert tuple(actual.shape) == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    assert tf.as_dtype(actual.dtype) == tf.as_dtype(dtype or expected.dtype), f"{what}: dtype {actual.dtype}"
    whole = value_of(actual)
    if rtol == 0 and atol == 0:
        np.testing.assert_array_equal(whole, expected, err_msg=what)
    else:
        np.testing.assert_allclose(whole, expected, rtol=rtol, atol=atol, err_msg=what)
