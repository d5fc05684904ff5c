"""The dtype in which the maths of a step is done, and scalars in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from optim import lazy

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazy.modules("tensorflow")


def constant(value: float, dtype: tf.DType) -> tf.Tensor:
    """Return as a tensor a number that may differ in each step: TensorFlow would keep a Python number for ever."""
    return tf.constant(np.array(value), dtype)


def is_one_of_few(value: Any) -> bool:
    """Whether a number is one of a few constants, such as 0, 1 and 0.5, which a rule may test; or not a number."""
    return not isinstance(value, float) or (abs(value) <= 2 and (2 * value).is_integer())


def float64s(numbers: Sequence[Any]) -> tf.Tensor:
    """Return a vector of numbers, some of them scalar tensors."""
    if not any(tf.is_tensor(number) for number in numbers):
        return tf.constant([float(number) for number in numbers], tf.float64, [len(numbers)])
    return tf.stack([tf.cast(n, tf.float64) if tf.is_tensor(n) else constant(n, tf.float64) for n in numbers])


def compute_dtype(dtype: tf.DType) -> tf.DType:
    """Return the dtype in which a variable of `dtype` is updated: at least float32, because 0.999 would round to 1 in
    bfloat16."""
    return tf.float32 if dtype in (tf.bfloat16, tf.float16) else dtype


def cast_scalars(scalars: Mapping[str, Any], dtype: tf.DType) -> dict[str, Any]:
    """Cast scalar tensors to `dtype`; Python floats stay, because TensorFlow rounds them once when they meet a
    tensor."""
    return {name: tf.cast(value, dtype) if tf.is_tensor(value) else value for name, value in scalars.items()}


def cast_scalar(value: Any, dtype: tf.DType) -> Any:
    return tf.cast(value, dtype) if tf.is_tensor(value) else value
