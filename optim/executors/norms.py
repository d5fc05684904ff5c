"""Sums of squares by TensorFlow's own ops, of whole tensors with or without a mesh."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim.devices import wait_for_pending
from optim.layouts.cached_functions import unfolded
from optim.layouts.placement import to_host
from optim.layouts.shard_slices import primary_parts
from optim.precision import compute_dtype, constant


def square_sum(gradient: Any) -> Any:
    """Return the sum of squares, a float64 scalar without a mesh or, in a function, on the mesh of the gradient.

    Squares of numbers above 1e19 do not fit into float32. If their sum is not finite, they are added up in float64.
    """
    if tf.executing_eagerly():  # moved off their meshes, because there may be several
        value = sum_of_parts(_squares, gradient)
        return constant(value if math.isfinite(value) else sum_of_parts(_wide_squares, gradient), tf.float64)
    usual = _squares(gradient)
    if gradient.dtype == tf.float64:
        return usual
    return tf.cond(tf.math.is_finite(usual), lambda: usual, lambda: _wide_squares(gradient))


def sum_of_parts(function: Callable[[Any], Any], tensor: Any) -> float:
    """Apply a function, whose results add up over parts, to an eager tensor with or without a mesh.

    On meshes of one client DTensor adds nothing up: `optim/executors/spread.py` explains why.
    """
    if not dtensor.is_dtensor(tensor) or dtensor.num_clients() > 1:
        return float(to_host(unfolded(function, tensor)))
    wait_for_pending()
    total = 0.0
    for part, counts in zip(dtensor.unpack(tensor), primary_parts(dtensor.fetch_layout(tensor)), strict=True):
        if counts:
            with tf.device(part.device):
                total += float(function(part))
    return total


def _squares(gradient: Any) -> Any:
    return tf.cast(tf.reduce_sum(tf.square(tf.cast(gradient, compute_dtype(gradient.dtype)))), tf.float64)


def _wide_squares(gradient: Any) -> Any:
    return _squares(tf.cast(gradient, tf.float64))
