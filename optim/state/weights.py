"""Lists of weights: read variables on any mesh as whole numpy arrays, and write them back, all or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from optim.errors import MismatchError
from optim.layouts import placement


class CallableList(list[tf.Variable]):
    """`optimizer.variables`, which programs for TensorFlow up to 2.10 call: `optimizer.variables()`."""

    def __call__(self) -> CallableList:
        return self


def read(variables: Sequence[tf.Variable]) -> list[np.ndarray]:
    """Return the value of each variable."""
    return [np.asarray(placement.to_host(variable)) for variable in variables]


def write(variables: Sequence[tf.Variable], weights: Sequence[Any], owner: str) -> None:
    """Assign one array to each variable, cast to its dtype, in its layout.

    Raises:
      MismatchError (a ValueError): another number of arrays, or another shape. Then nothing was assigned.
    """
    arrays = [np.asarray(weight) for weight in weights]
    if len(arrays) != len(variables):
        hint = (
            "" if variables else "; before its first step it has no weights: take a step, or call _create_all_weights"
        )
        raise MismatchError(
            f"set_weights of {owner} was given a list of {len(arrays)} arrays, it has {len(variables)} weights{hint}"
        )
    for position, (variable, array) in enumerate(zip(variables, arrays, strict=True)):
        if tuple(variable.shape) != array.shape:
            raise MismatchError(
                f"set_weights of {owner}: array {position} has shape {array.shape}, the weight {variable.name!r} has"
                f" shape {tuple(variable.shape)}"
            )
        if not (np.issubdtype(array.dtype, np.number) or array.dtype.kind == "V"):  # V: bfloat16
            raise MismatchError(f"set_weights of {owner}: array {position} has dtype {array.dtype}, not a number's")
    for variable, array in zip(variables, arrays, strict=True):
        value = array.astype(variable.dtype.as_numpy_dtype)
        variable.assign(placement.from_host(value, placement.layout_of(variable)))
