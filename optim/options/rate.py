"""The learning rate of a step: a constant in a variable, a schedule of `iterations`, or a zero-argument callable."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from optim import hyperparameters, lazy, schedules, slot_layout
from optim.algorithm import Algorithm
from optim.errors import HyperparameterError
from optim.options.accumulation import Accumulation
from optim.options.base import Option, Part
from optim.precision import constant

if TYPE_CHECKING:
    import tensorflow as tf

    from optim import float32_view
    from optim.float32_view import Float32View
    from optim.state.state import State
else:
    tf, float32_view = lazy.modules("tensorflow", "optim.float32_view")


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
    if schedules.is_schedule(value):
        return value
    if lazy.is_variable(value):
        return float32_view.exact(value)
    if callable(value):
        hyperparameters.check_callable("learning_rate", value)
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
    warnings.warn("lr is the old name of learning_rate", DeprecationWarning, 6)
    signatures = (inspect.signature(base).parameters for base in cls.__mro__ if base is not object)
    default = next((declared["learning_rate"].default for declared in signatures if "learning_rate" in declared), None)
    if rate is not None and rate is not default and rate not in (default, lr):
        raise HyperparameterError(f"lr={lr!r} contradicts learning_rate={rate!r}; give learning_rate only")
    return parse(lr)


def check_decay(decay: Any) -> float:
    """Return the old `decay` argument as a float >= 0. Raises HyperparameterError."""
    number = hyperparameters.to_number("decay", decay)
    if number is None or not math.isfinite(number) or number < 0:
        raise HyperparameterError(f"decay must be finite and >= 0, got {decay!r}")
    return number


class Rate(Part):
    """The learning rate of an optimizer, given under its new or old name, and the old `decay` of it."""

    options: ClassVar = {
        "decay": Option(
            0.0,
            "divides the learning rate by 1 + decay · iterations, >= 0 (deprecated: use a schedule)",
        ),
    }

    def __init__(
        self, learning_rate: Any, lr: Any, decay: Any, algorithm: Algorithm, state: State, accumulation: Accumulation
    ):
        self.decay = check_decay(decay)
        if self.decay:
            warnings.warn("decay is the old inverse time decay; new code uses a schedule", DeprecationWarning, 5)
        self._state = state
        self._accumulation = accumulation
        self._is_exact = False
        self._view: Float32View | None = None
        self._owner = algorithm.owner
        self._value: Any = None
        value = from_arguments(algorithm.cls, learning_rate, lr)
        if value is None:
            value = algorithm.default_rate
        if value is not None:
            self.keep(value)

    def change(self, name: str, value: Any) -> None:
        self.decay = check_decay(value)

    def join(self, state: State, accumulation: Accumulation) -> None:
        self._state, self._accumulation = state, accumulation
        if isinstance(self._value, float):
            self.keep(self._value)

    @property
    def is_constant(self) -> bool:
        """Whether it is a number, which is kept in the state."""
        return isinstance(self._value, float)

    @property
    def source(self) -> Any:
        """The constant's variable, which moves to the mesh of the model's variables; or what else was given."""
        return self._state.scalars[slot_layout.LEARNING_RATE] if self.is_constant else self._value

    def keep(self, parsed: Any) -> None:
        """Take another rate, as `parse` gives it."""
        self._value = float(parsed) if isinstance(parsed, (int, float)) else parsed
        if isinstance(self._value, float):
            self._state.new_scalar(slot_layout.LEARNING_RATE, self._value, "float64", "learning_rate")
        else:
            self._state.remove_scalar(slot_layout.LEARNING_RATE)
        self.changed()

    def replace(self, value: Any) -> None:
        """What setting `Optimizer.learning_rate` does."""
        parsed, rate = parse(value), self.source
        if parsed is rate:
            return
        is_number = isinstance(parsed, float)
        if is_number and schedules.is_schedule(rate):
            raise TypeError(
                "This optimizer was created with a LearningRateSchedule, which a number cannot replace; set another"
                " schedule, or a callable that returns the number"
            )
        if is_number and lazy.is_variable(rate):
            rate.assign(parsed)
        else:
            self.keep(parsed)

    def read(self) -> Any:
        """The constant rate's variable, or what the schedule or callable gives at `iterations`: float32, as in Keras.

        Setting a number assigns the variable, which keeps float64 for steps and for `get_config`; a schedule may be
        replaced by a schedule or a callable. In a custom `update_step` it is float64 for float64 variables.
        """
        rate = self.source
        if self._value is not None and rate is not self._value:  # the constant's variable
            return rate if self._is_exact else self._view_of(rate)
        value = self._read(rate)
        return tf.cast(value, tf.float32) if not self._is_exact and _is_float64_tensor(value) else value

    def _view_of(self, variable: tf.Variable) -> Float32View:
        if self._view is None or self._view.exact is not variable:
            self._view = float32_view.Float32View(variable)
        return self._view

    @contextmanager
    def in_dtype_of(self, variable: Any) -> Iterator[None]:
        """Let `read` give float64 if a variable is."""
        before, self._is_exact = self._is_exact, variable.dtype == tf.float64
        try:
            yield
        finally:
            self._is_exact = before

    def _read(self, rate: Any) -> Any:
        if rate is None:
            raise HyperparameterError(f"{self._owner} was made without a learning_rate")
        if schedules.is_schedule(rate):
            count = self._accumulation.count_now()
            return rate(constant(count, tf.int64) if isinstance(count, int) else count)
        return rate() if callable(rate) and not lazy.is_variable(rate) else rate

    def at(self, iterations: Any) -> Any:
        """The rate of the step after `iterations` steps, as `evaluate` gives it; None if the rate is not known."""
        iterations = self._accumulation.count_of_step(iterations)
        if isinstance(self._value, float) and isinstance(iterations, int):
            rate = float(self._state.counter(slot_layout.LEARNING_RATE).peek())
            return _decayed(rate, iterations, self.decay)
        source = self.source
        if source is None:
            return None
        return evaluate(source, iterations, self.decay)

    def to_json(self) -> Any:
        """The rate as a JSON value: a number, or a schedule's class and config."""
        rate = self.source
        if rate is None:
            return None
        if schedules.is_schedule(rate):
            return schedules.to_config(rate)
        return hyperparameters.to_number(
            "learning_rate", rate() if callable(rate) and not lazy.is_variable(rate) else rate
        )


def _is_float64_tensor(value: Any) -> bool:
    return lazy.is_tensor(value) and not lazy.is_variable(value) and value.dtype == tf.float64


def evaluate(source: Any, iterations: Any, decay: float) -> Any:
    """Learning rate of the step after `iterations` steps: a checked float eagerly, a float64 tensor in a function.

    Args:
      source: a float, scalar tensor, `tf.Variable`, schedule or callable.
      iterations: Python int eagerly, integer tensor in a function.
      decay: divides the rate by 1 + decay · iterations, as the `decay` of Keras up to 2.10 does.
    """
    if schedules.is_schedule(source):
        rate = source(constant(iterations, tf.int64) if isinstance(iterations, int) else iterations)
    elif callable(source) and not lazy.is_variable(source):
        rate = source()
    else:
        rate = source
    if isinstance(iterations, int):
        number = hyperparameters.to_number("learning_rate", rate)
        if number is not None:
            return _decayed(number, iterations, decay)
    elif callable(source) and not tf.is_tensor(rate) and not isinstance(source, tf.Variable):
        warnings.warn(
            f"the learning rate is a callable that returned {rate!r}, a number that this tf.function keeps from now on;"
            " give a tf.Variable, a schedule, or a callable that returns a tensor",
            UserWarning,
            stacklevel=2,
        )
    if isinstance(rate, tf.Variable):
        rate = rate.read_value()  # once, however often it is used
    # Not tf.cast of a Python float, which would round it to float32 on the way.
    rate = tf.cast(rate, tf.float64) if tf.is_tensor(rate) else tf.constant(rate, tf.float64)
    return rate / (1.0 + decay * tf.cast(iterations, tf.float64)) if decay else rate


def _decayed(rate: float, iterations: int, decay: float) -> float:
    """The rate, checked, after so many steps of inverse time decay."""
    return check_rate(rate, f" at iteration {iterations}") / (1.0 + decay * iterations)
