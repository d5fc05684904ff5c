"""TensorFlow, and modules that need it, loaded at their first use: with Keras on JAX or PyTorch never."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any


class Lazy(ModuleType):
    """A module that is imported at the first use of one of its attributes."""

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(import_module(self.__name__), name)
        if self.__name__.startswith("tensorflow"):
            setattr(self, name, attribute)  # no attribute of TensorFlow is replaced later
        return attribute


def modules(*names: str) -> Any:
    """Return a `Lazy` for each dotted name; a single one for one name."""
    lazy_modules = [Lazy(name) for name in names]
    return lazy_modules[0] if len(lazy_modules) == 1 else lazy_modules


@cache
def uses_tensorflow() -> bool:
    """Whether the optimizers of this process are TensorFlow's; decided once, at the first use of one.

    They are, unless Keras runs on JAX or PyTorch, or will by KERAS_BACKEND, and nothing has imported TensorFlow.
    """
    if sys.modules.get("tensorflow") is not None:
        return True
    keras = sys.modules.get("keras")
    known = None if keras is None else getattr(keras, "config", None)
    backend = os.environ.get("KERAS_BACKEND", "") if known is None else known.backend()
    return backend not in ("jax", "torch")


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor or a variable of TensorFlow; this does not load TensorFlow."""
    tf = sys.modules.get("tensorflow")
    return tf is not None and (tf.is_tensor(value) or isinstance(value, tf.Variable))


def is_variable(value: Any) -> bool:
    """Whether a value is a variable of TensorFlow; this does not load TensorFlow."""
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(value, tf.Variable)
