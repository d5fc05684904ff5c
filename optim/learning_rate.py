"""The learning rate of a step: a constant in a variable, a schedule of `iterations`, or a zero-argument callable."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from optim import hyperparameters, schedules, slot_layout
from optim.errors import HyperparameterError

if TYPE_CHECKING:
    from optim.optimizer import Optimizer


def check_rate(value: float, where: str = "") -> float:
    """Return a learning rate that is finite and not negative. Raises HyperparameterError."""
    if math.isfinite(value) and value >= 0:
        return value
    raise HyperparameterError(f"learning_rate must be finite and >= 0, got {value!r}{where}")


def parse(value: Any) -> Any:
    """What `learning_rate=` was given, checked: a float, a `tf.Variable`, a schedule or a callable.

    A mapping is a schedule's config, as `get_config` writes it. Raises HyperparameterError.
    """
    if isinstance(value, Mapping):
        return schedules.from_config(value)
    if isinstance(value, tf.Variable) or schedules.is_schedule(value) or callable(value):
        return value
    number = hyperparameters.to_number("learning_rate", value)
    if number is None:
        raise HyperparameterError(
            "learning_rate is a tensor of a tf.function that is being traced; give a tf.Variable or a callable"
        )
    return check_rate(number)


def from_arguments(cls: type, rate: Any, lr: Any) -> Any:
    """The parsed learning rate of an optimizer class, given under its new name, its old one, or (None) not at all.

    Raises HyperparameterError where the two contradict each other.
    """
    if lr is None:
        return None if rate is None else parse(rate)
    warnings.warn("lr is the old name of learning_rate", DeprecationWarning, 4)
    own = inspect.signature(cls).parameters.get("learning_rate")
    default = None if own is None else own.default
    if rate is not None and rate is not default and rate not in (default, lr):
        raise HyperparameterError(f"lr={lr!r} contradicts learning_rate={rate!r}; give learning_rate only")
    return parse(lr)


def check_decay(decay: Any) -> float:
    """Return the old `decay` argument as a float >= 0. Raises HyperparameterError."""
    number = hyperparameters.to_number("decay", decay)
    if number is None or not math.isfinite(number) or number < 0:
        raise HyperparameterError(f"decay must be finite and >= 0, got {decay!r}")
    return number


def current(optimizer: Optimizer, iterations: Any) -> Any:
    """Learning rate of an optimizer's next step, as `evaluate` gives it; None if it has none."""
    source = optimizer._rate
    if source is None:
        return None
    if source is optimizer._state.scalars.get(slot_layout.LEARNING_RATE) and isinstance(iterations, int):
        source = float(optimizer._state.counter(slot_layout.LEARNING_RATE).peek())
    return evaluate(source, iterations, optimizer._settings.decay)


def read(optimizer: Optimizer) -> Any:
    """What `Optimizer.learning_rate` gives."""
    rate = optimizer._rate
    if rate is None:
        raise HyperparameterError(f"{type(optimizer).__name__} was made without a learning_rate")
    if schedules.is_schedule(rate):
        iterations = optimizer.iterations
        return rate(tf.constant(iterations.numpy()) if tf.executing_eagerly() else iterations.read_value())
    return rate if isinstance(rate, tf.Variable) else rate()


def replace(optimizer: Optimizer, value: Any) -> None:
    """What setting `Optimizer.learning_rate` does."""
    parsed, rate = parse(value), optimizer._rate
    is_number = isinstance(parsed, float)
    if is_number and schedules.is_schedule(rate):
        raise TypeError(
            "This optimizer was created with a LearningRateSchedule, which a number cannot replace; set another"
            " schedule, or a callable that returns the number"
        )
    if is_number and isinstance(rate, tf.Variable):
        rate.assign(parsed)
    else:
        optimizer._learning_rate = parsed


def evaluate(source: Any, iterations: Any, decay: float) -> Any:
    """Learning rate of the step after `iterations` steps: a checked float eagerly, a float64 tensor in a function.

    Args:
      source: a float, scalar tensor, `tf.Variable`, schedule or callable.
      iterations: Python int eagerly, integer tensor in a function.
      decay: divides the rate by 1 + decay · iterations, as the `decay` of Keras up to 2.10 does.
    """
    if schedules.is_schedule(source):
        rate = source(tf.constant(iterations, tf.int64) if isinstance(iterations, int) else iterations)
    elif callable(source) and not isinstance(source, tf.Variable):
        rate = source()
    else:
        rate = source
    if isinstance(iterations, int):
        number = hyperparameters.to_number("learning_rate", rate)
        if number is not None:
            return check_rate(number, f" at iteration {iterations}") / (1.0 + decay * iterations)
    # Not tf.cast of a Python float, which would round it to float32 on the way.
    rate = (
        tf.cast(rate, tf.float64)
        if tf.is_tensor(rate) or isinstance(rate, tf.Variable)
        else tf.constant(rate, tf.float64)
    )
    return rate / (1.0 + decay * tf.cast(iterations, tf.float64)) if decay else rate
