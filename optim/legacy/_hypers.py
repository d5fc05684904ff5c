"""Hyperparameters as OptimizerV2 stored them: declared with `_set_hyper`, read with `_get_hyper` or as attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from optim import schedules
from optim.legacy._attributes import Delegated
from optim.legacy._base import LegacyOptimizer

NewVariable = Callable[[str, Any], tf.Variable]
"""Makes the variable of a hyperparameter from its name and its value."""


class Hypers:
    """Values by name. Numbers become variables at the first step, so that traced functions see changes."""

    def __init__(self, new_variable: NewVariable):
        self._new_variable = new_variable
        self._values: dict[str, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Any:
        return iter(sorted(self._values))

    def set(self, name: str, value: Any) -> None:
        """Declare a hyperparameter, or change its value."""
        old = self._values.get(name)
        if isinstance(old, tf.Variable) and not (callable(value) or schedules.is_schedule(value)):
            old.assign(tf.cast(value, old.dtype))
        else:
            self._values[name] = value

    def create(self) -> None:
        """Convert the numbers to variables."""
        for name, value in sorted(self._values.items()):
            is_live = tf.is_tensor(value) or isinstance(value, tf.Variable) or callable(value)
            if not (is_live or schedules.is_schedule(value)):
                self._values[name] = self._new_variable(name, value)

    def get(self, name: str) -> Any:
        """Return the schedule, the callable's value, or the variable or number. Raises KeyError."""
        return now(self._values[name])

    def number(self, name: str) -> Any:
        """Return the value for a config: a number, or a schedule's config. Raises KeyError."""
        value = self.get(name)
        if schedules.is_schedule(value):
            return schedules.to_config(value)
        return value.numpy().item() if tf.is_tensor(value) or isinstance(value, tf.Variable) else value


def now(value: Any) -> Any:
    """Return `value`, or its result if it is a callable; here variables and schedules do not count as callables."""
    if callable(value) and not isinstance(value, tf.Variable) and not schedules.is_schedule(value):
        return value()
    return value


def declared(cls: type) -> list[str]:
    """Return the names of the hyperparameters that the rule of a built-in class reads, except the learning rate."""
    return [name for base in cls.__mro__ for name, value in vars(base).items() if isinstance(value, Delegated)]


class HyperOptimizer(LegacyOptimizer):
    """The methods of a legacy optimizer for its hyperparameters; `legacy.v2.Optimizer` completes it."""

    _hyper: Hypers

    def _set_hyper(self, name: str, value: Any) -> None:
        """Declare a hyperparameter, or set it: a number, tensor, variable, schedule or zero-argument callable."""
        if hasattr(type(self), name):
            setattr(self, name, value)
        else:
            self._hyper.set(name, value)

    def _get_hyper(self, name: str, dtype: Any = None) -> Any:
        """Return the current value of a hyperparameter: a schedule unchanged, else a number or tensor, of `dtype` if
        given."""
        if name in self._hyper:
            self._create_hypers()
            value = self._hyper.get(name)
        elif name == "learning_rate":
            value = now(self._modern._learning_rate)
        else:
            value = now(getattr(self, name))
        return value if dtype is None or schedules.is_schedule(value) else tf.cast(value, dtype)

    def _serialize_hyperparameter(self, hyperparameter_name: str) -> Any:
        """Return a hyperparameter as in `get_config`."""
        if hyperparameter_name in self._hyper:
            return self._hyper.number(hyperparameter_name)
        if hyperparameter_name == "decay":
            return self.decay
        return self._modern.get_config()[hyperparameter_name]

    def _create_hypers(self) -> None:
        """Make the variables of declared hyperparameters, once."""
        self._hyper.create()

    def _new_hyper(self, name: str, value: Any) -> tf.Variable:
        return self._modern.add_variable([], tf.float32, lambda shape, dtype: tf.constant(value, dtype), name)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and name in self.__dict__.get("_hyper", ()):
            return self._get_hyper(name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_hyper", ()):
            self._hyper.set(name, value)
        else:
            super().__setattr__(name, value)

    @property
    def _initial_decay(self) -> float:
        return self.decay

    def _decayed_lr(self, var_dtype: Any) -> Any:
        """Return the learning rate of the next step, a tensor of `var_dtype`."""
        rate = self._get_hyper("learning_rate", var_dtype)
        steps = tf.cast(self.iterations, var_dtype)
        if schedules.is_schedule(rate):
            rate = tf.cast(rate(steps), var_dtype)
        return rate / (1.0 + tf.cast(self._rate_decay, var_dtype) * steps) if self._rate_decay else rate

    def _call_if_callable(self, param: Any) -> Any:
        return param() if callable(param) else param
