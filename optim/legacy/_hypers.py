"""Hyperparameters as OptimizerV2 kept them: declared with `_set_hyper`, read with `_get_hyper` or as attributes."""

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
    """Values by name. Numbers become variables when the first step is taken, so that traced functions see changes."""

    def __init__(self, new_variable: NewVariable):
        self._new_variable = new_variable
        self._values: dict[str, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Any:
        return iter(sorted(self._values))

    def set(self, name: str, value: Any) -> None:
        """Declare a hyperparameter, or give it another value."""
        old = self._values.get(name)
        if isinstance(old, tf.Variable) and not (callable(value) or schedules.is_schedule(value)):
            old.assign(tf.cast(value, old.dtype))
        else:
            self._values[name] = value

    def create(self) -> None:
        """Put the numbers into variables."""
        for name, value in sorted(self._values.items()):
            is_live = tf.is_tensor(value) or isinstance(value, tf.Variable) or callable(value)
            if not (is_live or schedules.is_schedule(value)):
                self._values[name] = self._new_variable(name, value)

    def get(self, name: str) -> Any:
        """The schedule, what a callable gives, or the variable or number. Raises KeyError."""
        return now(self._values[name])

    def number(self, name: str) -> Any:
        """What a config says: a number, or a schedule's config. Raises KeyError."""
        value = self.get(name)
        if schedules.is_schedule(value):
            return schedules.to_config(value)
        return value.numpy().item() if tf.is_tensor(value) or isinstance(value, tf.Variable) else value


def now(value: Any) -> Any:
    """`value`, or what it gives if it is a callable, which neither variables nor schedules are here."""
    if callable(value) and not isinstance(value, tf.Variable) and not schedules.is_schedule(value):
        return value()
    return value


def declared(cls: type) -> list[str]:
    """Names of the hyperparameters that the rule of a built-in class reads, but for the learning rate."""
    return [name for base in cls.__mro__ for name, value in vars(base).items() if isinstance(value, Delegated)]


class HyperOptimizer(LegacyOptimizer):
    """What a legacy optimizer is asked about its hyperparameters; `legacy.v2.Optimizer` completes it."""

    _hyper: Hypers

    def _set_hyper(self, name: str, value: Any) -> None:
        """Declare a hyperparameter, or set it: a number, tensor, variable, schedule or zero-argument callable."""
        if hasattr(type(self), name):
            setattr(self, name, value)
        else:
            self._hyper.set(name, value)

    def _get_hyper(self, name: str, dtype: Any = None) -> Any:
        """A hyperparameter now: a schedule as it is, else a number or tensor, of `dtype` if that is given."""
        if name in self._hyper:
            self._create_hypers()
            value = self._hyper.get(name)
        elif name == "learning_rate":
            value = now(self._modern._learning_rate)
        else:
            value = now(getattr(self, name))
        return value if dtype is None or schedules.is_schedule(value) else tf.cast(value, dtype)

    def _serialize_hyperparameter(self, hyperparameter_name: str) -> Any:
        """A hyperparameter as `get_config` tells it."""
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
        """The learning rate of the next step, a tensor of `var_dtype`."""
        rate = self._get_hyper("learning_rate", var_dtype)
        steps = tf.cast(self.iterations, var_dtype)
        if schedules.is_schedule(rate):
            rate = tf.cast(rate(steps), var_dtype)
        return rate / (1.0 + tf.cast(self._rate_decay, var_dtype) * steps) if self._rate_decay else rate

    def _call_if_callable(self, param: Any) -> Any:
        return param() if callable(param) else param
