"""Initial values of a variable that a caller adds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from optim.errors import HyperparameterError


def initializer_of(initializer: Any) -> Callable[..., Any]:
    """Return `(shape, dtype=...) -> tensor` for a callable or a Keras name. Raises HyperparameterError."""
    if callable(initializer):
        return initializer
    if not isinstance(initializer, str):
        raise HyperparameterError(f"initializer must be a callable or a name, got {initializer!r}")
    known = {"zeros": tf.zeros, "ones": tf.ones}.get(initializer.lower())  # the usual case, without importing Keras
    try:
        initialize = known or tf.keras.initializers.get(initializer)
    except (ImportError, ValueError) as error:
        raise HyperparameterError(f"initializer must be a callable or a name, got {initializer!r}: {error}") from error
    return lambda shape, dtype: tf.convert_to_tensor(initialize(shape, dtype=dtype), dtype)
