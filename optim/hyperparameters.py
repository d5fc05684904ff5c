"""Hyperparameters: numbers, scalar tensors or zero-argument callables, validated wherever their value is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from optim.errors import HyperparameterError


def to_number(name: str, value: Any) -> float | None:
    """`value` as a Python float, or None if it is symbolic (inside a `tf.function`).

    Raises:
      HyperparameterError: not a real scalar.
    """
    if type(value) is float:  # the usual case; to find out what is a tensor takes TensorFlow 10 us
        return value
    if tf.is_tensor(value) or isinstance(value, tf.Variable):
        if value.shape.rank not in (0, None):
            raise HyperparameterError(f"{name} must be a scalar, got a tensor of shape {tuple(value.shape)}")
        if isinstance(value, tf.Variable):
            value = value.read_value()
        if not hasattr(value, "numpy"):
            return None
        value = value.numpy()
    if isinstance(value, (bool, np.bool_, str, bytes)) or value is None:
        raise HyperparameterError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise HyperparameterError(f"{name} must be a number, got {value!r}") from error


class Hyperparameter:
    """A hyperparameter of an optimizer class, as an attribute that checks what is assigned to it.

    Args:
      low: the least value allowed.
      high: the upper bound, excluded; None for no bound.
      closed: the upper bound is allowed, too.

    A Python number keeps float64 precision. A tensor, a `tf.Variable` or a zero-argument callable is asked again at
    every step (inside a `tf.function`: when it is traced, but for a `tf.Variable`, which stays live).
    """

    def __init__(self, low: float = 0.0, high: float | None = None, closed: bool = False):
        self.low = low
        self.high = high
        self.closed = closed

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        values = instance.__dict__.get("_hyperparameters", {})
        if self.name not in values:
            raise AttributeError(f"{type(instance).__name__}.{self.name} was not set")
        return values[self.name]

    def __set__(self, instance: Any, value: Any) -> None:
        if not callable(value):
            number = to_number(self.name, value)
            if number is not None:
                self.check(number)
                if not (tf.is_tensor(value) or isinstance(value, tf.Variable)):
                    value = number
        instance.__dict__.setdefault("_hyperparameters", {})[self.name] = value

    def check(self, number: float) -> float:
        """Return `number` if it is in range. Raises HyperparameterError."""
        below = self.high is None or number < self.high or (self.closed and number == self.high)
        if math.isfinite(number) and self.low <= number and below:
            return number
        if self.high is None:
            bounds = "finite" if self.low == -math.inf else f">= {self.low:g}"
        else:
            bounds = f"in [{self.low:g}, {self.high:g}{']' if self.closed else ')'}"
        raise HyperparameterError(f"{self.name} must be {bounds}, got {number!r}")

    def current(self, instance: Any) -> Any:
        """This step's value: a checked Python float, or a float64 tensor inside a `tf.function`."""
        value = self.__get__(instance)
        if callable(value) and not isinstance(value, tf.Variable):
            value = value()
        if tf.executing_eagerly() or not (tf.is_tensor(value) or isinstance(value, tf.Variable)):
            number = to_number(self.name, value)
            if number is not None:
                return self.check(number)
        return tf.cast(value, tf.float64)

    def config(self, instance: Any) -> float:
        """A JSON number: the value now."""
        value = self.__get__(instance)
        with tf.init_scope():
            number = to_number(self.name, value() if callable(value) and not isinstance(value, tf.Variable) else value)
        if number is None:
            raise HyperparameterError(f"{self.name} is symbolic; call get_config() outside of tf.function")
        return number


def fixed(name: str, value: Any, low: float = 0.0) -> float:
    """A number that an optimizer takes once and for all, finite and at least `low`. Raises HyperparameterError."""
    number = to_number(name, value)
    if number is None or not math.isfinite(number) or number < low:
        raise HyperparameterError(f"{name} must be a finite number >= {low:g}, got {value!r}")
    return number


_declared: WeakKeyDictionary[type, Mapping[str, Hyperparameter]] = WeakKeyDictionary()


def declared(cls: type) -> Mapping[str, Hyperparameter]:
    """The hyperparameters that a class and its bases declare, by name."""
    found = _declared.get(cls)
    if found is None:
        pairs = [(n, v) for base in reversed(cls.__mro__) for n, v in vars(base).items()]
        found = _declared[cls] = {n: v for n, v in pairs if isinstance(v, Hyperparameter)}
    return found
