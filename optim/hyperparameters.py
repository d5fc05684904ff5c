"""Hyperparameters: numbers, scalar tensors or zero-argument callables, validated when their value is known."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from optim import lazy
from optim.arguments import Hyperparameter
from optim.errors import HyperparameterError, UnsupportedError

if TYPE_CHECKING:
    import tensorflow as tf

    from optim import float32_view
else:
    tf, float32_view = lazy.modules("tensorflow", "optim.float32_view")


def to_number(name: str, value: Any) -> float | None:
    """Return `value` as a Python float, or None if it is symbolic (inside a `tf.function`).

    Raises:
      HyperparameterError: not a real scalar.
    """
    if type(value) is float:  # the usual case; TensorFlow needs 10 us to recognise a tensor
        return value
    if lazy.is_tensor(value):
        if value.shape.rank not in (0, None):
            raise HyperparameterError(f"{name} must be a scalar, got a tensor of shape {tuple(value.shape)}")
        if isinstance(value, tf.Variable):
            value = float32_view.exact(value).read_value()
        if not hasattr(value, "numpy"):
            return None
        value = value.numpy()
    if isinstance(value, (bool, np.bool_, str, bytes)) or value is None:
        raise HyperparameterError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise HyperparameterError(f"{name} must be a number, got {value!r}") from error


def check_callable(name: str, value: Callable[..., Any]) -> None:
    """Raise HyperparameterError for a class, or an object that cannot be called without arguments."""
    if isinstance(value, type):
        raise HyperparameterError(f"{name} is the class {value.__name__}; give an instance of it")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # some C functions have no signature
        return
    try:
        signature.bind()
    except TypeError as error:
        raise HyperparameterError(
            f"{name} is called without arguments, and {value!r} has a {error}; a learning rate that depends on the step"
            " is a subclass of optim.schedules.LearningRateSchedule, or of Keras's"
        ) from error


class Values:
    """The hyperparameters of one optimizer: numbers, scalar tensors or zero-argument callables.

    Args:
      declared: the declarations of its rule, by name.
      given: values of some of them; the others have their defaults.

    A Python number keeps float64 precision. A tensor, a `tf.Variable` or a zero-argument callable is evaluated again at
    every step. Inside a `tf.function` it is evaluated during tracing, except for a `tf.Variable`, which stays live.

    Raises:
      HyperparameterError: out of range, not a number, or missing.
    """

    def __init__(self, declared: Mapping[str, Hyperparameter], values: Mapping[str, Any]):
        self.declared = declared
        self.values: dict[str, Any] = {}
        for name, declaration in declared.items():
            self.set(name, values.get(name, declaration.default))

    def set(self, name: str, value: Any) -> None:
        """Check and store a value, from the next step on."""
        if callable(value):
            check_callable(name, value)
        else:
            number = to_number(name, value)
            if number is not None:
                self.declared[name].check(name, number)
                if not lazy.is_tensor(value):
                    value = number
        self.values[name] = value

    def current(self) -> dict[str, Any]:
        """Return this step's values: checked Python floats, or float64 tensors inside a `tf.function`."""
        return {name: self._current(name, value) for name, value in self.values.items()}

    def _current(self, name: str, value: Any) -> Any:
        if type(value) is float:  # was checked when it was set
            return value
        if callable(value) and not lazy.is_variable(value):
            value = value()
        if not lazy.is_tensor(value) or tf.executing_eagerly():
            number = to_number(name, value)
            if number is not None:
                return self.declared[name].check(name, number)
        return tf.cast(value, tf.float64)

    def config(self) -> dict[str, float]:
        """Return the current values as JSON numbers."""
        values = {}
        for name, value in self.values.items():
            if type(value) is float:
                values[name] = value
                continue
            with tf.init_scope():
                is_callable = callable(value) and not isinstance(value, tf.Variable)
                number = to_number(name, value() if is_callable else value)
            if number is None:
                raise HyperparameterError(f"{name} is symbolic; call get_config() outside of tf.function")
            values[name] = number
        return values


class HyperparameterAttribute:
    """One of `Values` as an attribute of the optimizer; assignments are checked."""

    def __init__(self, name: str):
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else instance._hyper.values[self.name]

    def __set__(self, instance: Any, value: Any) -> None:
        values = instance._hyper.values
        before = values[self.name]
        instance._hyper.set(self.name, value)
        missing = instance._slots_missing()
        if missing:
            values[self.name] = before
            raise UnsupportedError(
                f"this {type(instance).__name__} was made without {self.name} and has no slot {missing[0]!r} for it;"
                f" make a new one with from_config({{**optimizer.get_config(), {self.name!r}: {value!r}}})"
            )
        instance._settings.report_change()


class ChoiceAttribute:
    """A structural choice as an attribute of the optimizer, which cannot be changed."""

    def __init__(self, name: str):
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else instance._choices[self.name]

    def __set__(self, instance: Any, value: Any) -> None:
        raise UnsupportedError(
            f"{self.name} is fixed when {type(instance).__name__} is made; make a new one with"
            f" from_config({{**optimizer.get_config(), {self.name!r}: {value!r}}})"
        )
