"""Sums of squares by TensorFlow's own ops, of whole tensors on any mesh or none."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from optim.layouts.folding import unfolded
from optim.layouts.placement import to_host
from optim.precision import compute_dtype, constant


def square_sum(gradient: Any) -> Any:
    """The sum of squares, a float64 scalar on no mesh or, in a function, on that of the gradient.

    Squares of numbers above 1e19 do not fit into float32: if their sum is not finite, they are added up in float64.
    """
    usual = unfolded(_squares, gradient)
    if tf.executing_eagerly():  # brought off their meshes, of which there may be several
        value = to_host(usual)
        return constant(value if math.isfinite(value) else to_host(unfolded(_wide_squares, gradient)), tf.float64)
    if gradient.dtype == tf.float64:
        return usual
    return tf.cond(tf.math.is_finite(usual), lambda: usual, lambda: _wide_squares(gradient))


def _squares(gradient: Any) -> Any:
    return tf.cast(tf.reduce_sum(tf.square(tf.cast(gradient, compute_dtype(gradient.dtype)))), tf.float64)


def _wide_squares(gradient: Any) -> Any:
    return _squares(tf.cast(gradient, tf.float64))
