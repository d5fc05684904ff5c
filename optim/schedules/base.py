"""The interface of learning-rate schedules, and a base whose formula is written once, for TensorFlow, NumPy and JAX."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from optim.errors import HyperparameterError

if TYPE_CHECKING:
    import tensorflow as tf


def finite(name: str, value: Any) -> float:
    """Return the number, or the current value of a scalar tensor or variable (such as an optimizer's
    `learning_rate`)."""
    number = float(value) if type(value) in (int, float) else _to_number(name, value)
    if number is None or not math.isfinite(number):
        raise HyperparameterError(f"{name} must be a finite number, got {value!r}")
    return number


def _to_number(name: str, value: Any) -> float | None:
    from optim import hyperparameters

    return hyperparameters.to_number(name, value)


def positive_steps(name: str, value: Any) -> float:
    steps = finite(name, value)
    if steps <= 0:
        raise HyperparameterError(f"{name} must be > 0, got {value!r}")
    return steps


class LearningRateSchedule(abc.ABC):
    """Base of schedules: a subclass defines `__call__(step)` and `get_config()`.

    `step` is `optimizer.iterations`, an integer scalar; the result is a scalar tensor.
    """

    @abc.abstractmethod
    def __call__(self, step: Any) -> tf.Tensor:
        """Return the learning rate of the step after `step` steps."""

    def at(self, step: int) -> float:
        """Return the same as a number."""
        return float(self(step))

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON values."""
        return dict(vars(self))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LearningRateSchedule:
        return cls(**config)


KNOWN: dict[str, type[LearningRateSchedule]] = {}
"""Each schedule of `optim` by its name: `from_config` makes these."""


class Computed(LearningRateSchedule):
    """A schedule whose formula is written once, on an array namespace, like those of rules. Keras's can be computed in
    float32."""

    _dtype = "float64"
    """Dtype of the computation; `from_config` sets that of Keras, for Keras's schedules."""
    _counts_whole = False
    """Whether steps are compared unconverted, and only the result has `_dtype`."""

    @abc.abstractmethod
    def formula(self, xp: Any, step: Any) -> Any:
        """Return the rate after `step` steps, in the dtype of `step`; `xp` is `numpy` or that of TensorFlow."""

    def __call__(self, step: Any) -> tf.Tensor:
        from optim.namespace import XP

        return self.on(XP, step)

    def on(self, xp: Any, step: Any) -> Any:
        """Return the rate as a scalar of the array namespace `xp`, which has `cast` in addition to the functions of
        formulas."""
        rate = self.formula(xp, xp.cast(step, "float64" if self._counts_whole else self._dtype))
        return xp.cast(rate, self._dtype)

    def at(self, step: int) -> float:
        dtype = np.float32 if self._dtype == "float32" else np.float64
        with np.errstate(all="ignore"):  # both sides of a choice are computed
            return float(dtype(self.formula(np, np.float64(step) if self._counts_whole else dtype(step))))

    def get_config(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def _is_in_ops_of_keras(self, xp: Any) -> bool:
        return xp is not np and self._dtype != "float64"

    def _either(self, xp: Any, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        """Return one of two scalars. Keras has branches, which TensorFlow optimizes separately, with different
        rounding."""
        if self._is_in_ops_of_keras(xp):
            return xp.cond(condition, yes, no)
        return xp.where(condition, yes(), no())

    def _outside(self, xp: Any, number: float) -> Any:
        """Return a number that Keras passes to its branches from outside, so that it is not a constant in them."""
        return xp.constant(number, self._dtype) if self._is_in_ops_of_keras(xp) else number

    def _rounded(self, number: float) -> float:
        """Return a constant, or the result of two, in the dtype of the formula."""
        return float(np.float32(number)) if self._dtype == "float32" else number
