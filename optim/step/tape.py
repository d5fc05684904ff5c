"""Compute gradients of a loss by a tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim.errors import UnsupportedError
from optim.state.names import listed
from optim.state.tracked import unwrap


def compute(
    loss: Any, var_list: Any, tape: tf.GradientTape | None, scale: Callable[[Any, list[Any]], Any] | None
) -> list[tuple[Any, Any]]:
    """Return the result of `Optimizer.compute_gradients`.

    `scale(loss, variables)` returns the factor of the loss, None for no scaling.
    """
    if not callable(loss) and tape is None:
        raise UnsupportedError("compute_gradients of a loss tensor needs the tape that recorded it; pass tape=")
    tape = tape or tf.GradientTape()
    if callable(loss):
        with tape:
            if not callable(var_list):
                tape.watch([unwrap(v) for v in listed(var_list)])
            loss = loss()
    variables = listed(var_list() if callable(var_list) else var_list)
    # The tape would start from a plain 1, which TensorFlow refuses to combine with a DTensor eagerly.
    seed = tf.ones_like(loss) if tf.executing_eagerly() and dtensor.is_dtensor(loss) else None
    if scale is not None:  # scale the seed and not the loss, which might overflow
        seed = tf.ones_like(loss) * tf.cast(scale(loss, variables), loss.dtype)
    gradients = tape.gradient(loss, [unwrap(v) for v in variables], output_gradients=seed)
    return list(zip(gradients, variables, strict=True))
