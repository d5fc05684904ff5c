"""What a learning-rate schedule is, and one whose formula is written once, for TensorFlow, NumPy and JAX."""

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
    """The number, or what a scalar tensor or variable holds now (an optimizer's `learning_rate`, for one)."""
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
    """Base of schedules: a subclass gives `__call__(step)` and `get_config()`.

    `step` is `optimizer.iterations`, an integer scalar; the result is a scalar tensor.
    """

    @abc.abstractmethod
    def __call__(self, step: Any) -> tf.Tensor:
        """The learning rate of the step after `step` steps."""

    def at(self, step: int) -> float:
        """The same as a number."""
        return float(self(step))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments as JSON values."""
        return dict(vars(self))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LearningRateSchedule:
        return cls(**config)


KNOWN: dict[str, type[LearningRateSchedule]] = {}
"""Each schedule of `optim` by its name: `from_config` makes these."""


class Computed(LearningRateSchedule):
    """Its formula is written once, on an array namespace, as those of rules are. Keras's can be computed in float32."""

    _dtype = "float64"
    """In which dtype it is computed; `from_config` sets that of Keras, for its own."""
    _counts_whole = False
    """Whether steps are compared as they are, and only the result has `_dtype`."""

    @abc.abstractmethod
    def formula(self, xp: Any, step: Any) -> Any:
        """The rate after `step` steps, in the dtype of `step`; `xp` is `numpy` or that of TensorFlow."""

    def __call__(self, step: Any) -> tf.Tensor:
        from optim.namespace import XP

        return self.on(XP, step)

    def on(self, xp: Any, step: Any) -> Any:
        """The rate as a scalar of the array namespace `xp`, which has `cast` besides what formulas need."""
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
        """One of two scalars. Keras has branches, which TensorFlow optimizes apart: other bits than without."""
        if self._is_in_ops_of_keras(xp):
            return xp.cond(condition, yes, no)
        return xp.where(condition, yes(), no())

    def _outside(self, xp: Any, number: float) -> Any:
        """A number that Keras gives its branches from outside, and so is no constant in them."""
        return xp.constant(number, self._dtype) if self._is_in_ops_of_keras(xp) else number

    def _rounded(self, number: float) -> float:
        """A constant, or what two of them give, in the dtype of the formula."""
        return float(np.float32(number)) if self._dtype == "float32" else number
