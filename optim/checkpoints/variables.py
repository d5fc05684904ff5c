"""Variables that checkpoints take: TensorFlow's, and those of Keras on JAX and PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from optim import lazy
from optim.checkpoints.handles import Handle
from optim.errors import CheckpointError, GradientsError
from optim.state.names import listed, plain_name

if TYPE_CHECKING:
    from optim.checkpoints import of_keras, of_tensorflow
else:
    of_keras, of_tensorflow = lazy.modules("optim.checkpoints.of_keras", "optim.checkpoints.of_tensorflow")

Variables = Mapping[str, Any] | Sequence[Any]


def is_of_keras(variable: Any) -> bool:
    """Whether it is a variable of Keras on JAX or PyTorch."""
    keras = sys.modules.get("keras")
    known = None if keras is None else getattr(keras, "Variable", None)
    return known is not None and isinstance(variable, known) and keras.backend.backend() != "tensorflow"  # type: ignore[union-attr]


def handle(variable: Any) -> Handle:
    """How to read and write a variable. Raises GradientsError: not a variable."""
    if is_of_keras(variable):
        return of_keras.KerasHandle(variable)
    if not lazy.uses_tensorflow():
        raise GradientsError(f"expected a variable of Keras, got {type(variable).__name__}: {str(variable)[:80]!r}")
    return of_tensorflow.TensorFlowHandle(variable)


def identity(variable: Any) -> int:
    """The same for a variable of TensorFlow and what wraps it."""
    return id(handle(variable).variable)


def dtype_called(name: str) -> np.dtype[Any]:
    """numpy's dtype of TensorFlow's name; those that numpy lacks are of ml_dtypes, which comes with every framework."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def named_variables(variables: Variables) -> dict[str, Any]:
    """The variables by name. Raises CheckpointError if two have the same."""
    if isinstance(variables, Mapping):
        return {str(name): variable for name, variable in variables.items()}
    named: dict[str, Any] = {}
    for variable in listed(variables):
        name = plain_name(variable)
        if name in named:
            raise CheckpointError(f"two variables are called {name!r}; pass a mapping of unique names to variables")
        named[name] = variable
    return named
