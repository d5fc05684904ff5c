"""Functions in place of eager ops on meshes, for which DTensor would compile an op at every step.

Next to a divided tensor, and in assignments, DTensor makes a constant of each float32 tensor of fewer than ten
elements. It compiles an eager op again for each value, in some 8 ms, and keeps 140 KB of it for ever. It stops after it
has seen the values of one function change. An op shares its name with all others, and did not stop in our tests. Of
float64 it makes no constants (TensorFlow's dtensor/cc/small_constant_optimization.cc).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import tensorflow as tf


def unfolded(function: Callable[..., Any], *tensors: Any) -> Any:
    """Call `function(*tensors)`, a function of a module; for eager DTensors as a `tf.function`. Numbers are float64."""
    if not tf.executing_eagerly() or "CUSTOM" not in tensors[0].device:
        return function(*tensors)
    return _traced(function, tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors))(*tensors)


@cache
def _traced(function: Callable[..., Any], kinds: tuple[Any, ...]) -> Any:
    """Return one function for each kind of tensors: TensorFlow warns about many traces of one function."""
    return tf.function(function, autograph=False)
