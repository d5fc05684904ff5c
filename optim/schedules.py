"""Learning-rate schedules with the names, arguments and formulas of Keras, computed in float64.

They exist so that an optimizer's config can be read back without Keras: any stock schedule of Keras 3, tf_keras or
tf.keras is described by `{"class_name", "config"}`, and `from_config` gives the class of that name from here.
Formulas: `keras/src/optimizers/schedules/learning_rate_schedule.py`, Keras 3. `Formula` is none of theirs: it is what
the graph of a TensorFlow 1 program computes.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from optim import hyperparameters
from optim.errors import HyperparameterError


def _finite(name: str, value: Any) -> float:
    """The number, or what a scalar tensor or variable holds now (an optimizer's `learning_rate`, for one)."""
    number = hyperparameters.to_number(name, value)
    if number is None or not math.isfinite(number):
        raise HyperparameterError(f"{name} must be a finite number, got {value!r}")
    return number


def _steps(name: str, value: Any) -> float:
    steps = _finite(name, value)
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

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments as JSON values."""
        return dict(vars(self))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LearningRateSchedule:
        return cls(**config)


class ExponentialDecay(LearningRateSchedule):
    """initial · decay_rate ^ (step / decay_steps), the exponent rounded down if `staircase`."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str = "ExponentialDecay",
    ):
        self.initial_learning_rate = _finite("initial_learning_rate", initial_learning_rate)
        self.decay_steps = _steps("decay_steps", decay_steps)
        self.decay_rate = _finite("decay_rate", decay_rate)
        self.staircase = bool(staircase)
        self.name = name

    def __call__(self, step: Any) -> tf.Tensor:
        periods = tf.cast(step, tf.float64) / self.decay_steps
        if self.staircase:
            periods = tf.floor(periods)
        return self.initial_learning_rate * tf.pow(tf.constant(self.decay_rate, tf.float64), periods)


class InverseTimeDecay(LearningRateSchedule):
    """initial / (1 + decay_rate · step / decay_steps), the quotient rounded down if `staircase`."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str = "InverseTimeDecay",
    ):
        self.initial_learning_rate = _finite("initial_learning_rate", initial_learning_rate)
        self.decay_steps = _steps("decay_steps", decay_steps)
        self.decay_rate = _finite("decay_rate", decay_rate)
        self.staircase = bool(staircase)
        self.name = name

    def __call__(self, step: Any) -> tf.Tensor:
        periods = tf.cast(step, tf.float64) / self.decay_steps
        if self.staircase:
            periods = tf.floor(periods)
        return self.initial_learning_rate / (1.0 + self.decay_rate * periods)


class PiecewiseConstantDecay(LearningRateSchedule):
    """values[k] while step <= boundaries[k], and the last value after the last boundary."""

    def __init__(self, boundaries: Sequence[float], values: Sequence[float], name: str = "PiecewiseConstant"):
        if len(boundaries) != len(values) - 1:
            raise HyperparameterError(
                f"values must be one longer than boundaries, got {len(values)} and {len(boundaries)}"
            )
        self.boundaries = [_finite("boundaries", b) for b in boundaries]
        self.values = [_finite("values", v) for v in values]
        self.name = name

    def __call__(self, step: Any) -> tf.Tensor:
        step = tf.cast(step, tf.float64)
        rate = tf.zeros_like(step) + self.values[-1]
        for boundary, value in zip(reversed(self.boundaries), reversed(self.values[:-1]), strict=True):
            rate = tf.where(step <= boundary, tf.zeros_like(step) + value, rate)
        return rate


class PolynomialDecay(LearningRateSchedule):
    """(initial − end) · (1 − step / decay_steps) ^ power + end; with `cycle`, decay_steps grows by whole multiples."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        name: str = "PolynomialDecay",
    ):
        self.initial_learning_rate = _finite("initial_learning_rate", initial_learning_rate)
        self.decay_steps = _steps("decay_steps", decay_steps)
        self.end_learning_rate = _finite("end_learning_rate", end_learning_rate)
        self.power = _finite("power", power)
        self.cycle = bool(cycle)
        self.name = name

    def __call__(self, step: Any) -> tf.Tensor:
        step = tf.cast(step, tf.float64)
        steps = tf.zeros_like(step) + self.decay_steps
        if self.cycle:
            steps = steps * tf.maximum(tf.math.ceil(step / self.decay_steps), 1.0)
        else:
            step = tf.minimum(step, steps)
        left = tf.pow(1.0 - step / steps, tf.constant(self.power, tf.float64))
        return (self.initial_learning_rate - self.end_learning_rate) * left + self.end_learning_rate


class CosineDecay(LearningRateSchedule):
    """Optional linear warm-up to `warmup_target`, then half a cosine down to alpha · (warmup_target or initial)."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        alpha: float = 0.0,
        name: str = "CosineDecay",
        warmup_target: float | None = None,
        warmup_steps: float = 0,
    ):
        self.initial_learning_rate = _finite("initial_learning_rate", initial_learning_rate)
        self.decay_steps = _steps("decay_steps", decay_steps)
        self.alpha = _finite("alpha", alpha)
        self.name = name
        self.warmup_target = None if warmup_target is None else _finite("warmup_target", warmup_target)
        self.warmup_steps = _finite("warmup_steps", warmup_steps)

    def _decayed(self, step: Any, top: float) -> tf.Tensor:
        fraction = tf.minimum(step, self.decay_steps) / self.decay_steps
        cosine = 0.5 * (1.0 + tf.cos(math.pi * fraction))
        return top * ((1.0 - self.alpha) * cosine + self.alpha)

    def __call__(self, step: Any) -> tf.Tensor:
        step = tf.cast(step, tf.float64)
        if self.warmup_target is None:
            return self._decayed(step, self.initial_learning_rate)
        steps = max(self.warmup_steps, 1e-300)
        rise = (self.warmup_target - self.initial_learning_rate) * step / steps + self.initial_learning_rate
        fall = self._decayed(tf.maximum(step - self.warmup_steps, 0.0), self.warmup_target)
        return tf.where(step < self.warmup_steps, rise, fall)


class CosineDecayRestarts(LearningRateSchedule):
    """Cosine decay that starts again, each period `t_mul` times as long and its top `m_mul` times as high."""

    def __init__(
        self,
        initial_learning_rate: float,
        first_decay_steps: float,
        t_mul: float = 2.0,
        m_mul: float = 1.0,
        alpha: float = 0.0,
        name: str = "SGDRDecay",
    ):
        self.initial_learning_rate = _finite("initial_learning_rate", initial_learning_rate)
        self.first_decay_steps = _steps("first_decay_steps", first_decay_steps)
        self.t_mul = _finite("t_mul", t_mul)
        self.m_mul = _finite("m_mul", m_mul)
        self.alpha = _finite("alpha", alpha)
        self.name = name

    def __call__(self, step: Any) -> tf.Tensor:
        fraction = tf.cast(step, tf.float64) / self.first_decay_steps
        if self.t_mul == 1.0:
            restarts = tf.floor(fraction)
            fraction = fraction - restarts
        else:
            ratio = tf.constant(self.t_mul, tf.float64)
            restarts = tf.floor(tf.math.log(1.0 - fraction * (1.0 - ratio)) / tf.math.log(ratio))
            before = (1.0 - ratio**restarts) / (1.0 - ratio)
            fraction = (fraction - before) / ratio**restarts
        top = tf.constant(self.m_mul, tf.float64) ** restarts
        cosine = 0.5 * top * (1.0 + tf.cos(math.pi * fraction))
        return self.initial_learning_rate * ((1.0 - self.alpha) * cosine + self.alpha)


STOCK: dict[str, type[LearningRateSchedule]] = {
    cls.__name__: cls
    for cls in (
        ExponentialDecay,
        InverseTimeDecay,
        PiecewiseConstantDecay,
        PolynomialDecay,
        CosineDecay,
        CosineDecayRestarts,
    )
}


class Formula(LearningRateSchedule):
    """A rate that ops of TensorFlow compute from the step, one after another, in the dtypes in which its program did.

    Args:
      operations: lists of an op's name and what it takes: `["Step", DTYPE]`; `["Const", DTYPE, NUMBER or LIST]`;
        `["Cast", PLACE, DTYPE]`; and those of `TAKES` with the places of what they take among the earlier ones. The
        last one is the rate.

    Raises:
      HyperparameterError: it is something else, or computes no scalar.
    """

    TAKES: Mapping[str, str] = {
        **dict.fromkeys(("AddV2", "Sub", "Mul", "RealDiv", "FloorDiv", "FloorMod", "Pow", "Minimum", "Maximum"), "x y"),
        **dict.fromkeys(("Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual"), "x y"),
        **dict.fromkeys(("LogicalAnd", "LogicalOr"), "x y"),
        **dict.fromkeys(("LogicalNot", "Neg", "Abs", "Floor", "Ceil", "Exp", "Log", "Sqrt", "Rsqrt"), "x"),
        **dict.fromkeys(("Square", "Sin", "Cos", "Tanh", "Sigmoid"), "x"),
        **dict.fromkeys(("Max", "Min", "Sum"), "input axis"),
        "SelectV2": "condition t e",
        "OneHot": "indices depth on_value off_value",
    }
    """Ops of `tf.raw_ops` and the names of what they take."""
    DTYPES = ("float32", "float64", "int32", "int64", "bool")

    def __init__(self, operations: Sequence[Sequence[Any]], name: str = "Formula"):
        self.operations = [list(each) for each in operations]
        self.name = name
        try:
            with tf.init_scope():
                rate = self(0)
        except (LookupError, TypeError, ValueError, tf.errors.OpError) as error:
            text = str(error).strip().partition("\n")[0]
            raise HyperparameterError(f"operations of a Formula cannot be computed: {text}") from error
        if rate.shape.rank != 0 or not rate.dtype.is_floating:
            raise HyperparameterError(f"operations of a Formula must give one number, got {rate.dtype} {rate.shape}")

    def __call__(self, step: Any) -> tf.Tensor:
        made: list[tf.Tensor] = []
        for op, *taken in self.operations:
            made.append(self._one(op, taken, step, made))
        return made[-1]

    def _one(self, op: str, taken: Sequence[Any], step: Any, made: Sequence[tf.Tensor]) -> tf.Tensor:
        if op in ("Step", "Const", "Cast"):
            dtype = taken[0 if op != "Cast" else 1]
            if dtype not in self.DTYPES:
                raise ValueError(f"{dtype!r} is none of {', '.join(self.DTYPES)}")
            return (
                tf.constant(taken[1], dtype)
                if op == "Const"
                else tf.cast(step if op == "Step" else made[taken[0]], dtype)
            )
        names = self.TAKES[op].split()
        return getattr(tf.raw_ops, op)(**{key: made[place] for key, place in zip(names, taken, strict=True)})


KNOWN: dict[str, type[LearningRateSchedule]] = {**STOCK, Formula.__name__: Formula}
"""And what is none of Keras's."""
HOMES = ("keras", "tf_keras", "tensorflow", "builtins", "optim")
"""Packages whose schedule of a stock one's name is that one, in Keras's `{"module", "class_name", ...}`."""


def is_schedule(value: Any) -> bool:
    """Whether `value` is a schedule of ours, of Keras 3, tf_keras or tf.keras (a class of that name in its bases)."""
    return any(base.__name__ == "LearningRateSchedule" for base in type(value).__mro__)


def to_config(schedule: Any) -> dict[str, Any]:
    """`{"class_name", "config"}` of any schedule; its `get_config` must give JSON values."""
    return {"class_name": type(schedule).__name__, "config": dict(schedule.get_config())}


def from_config(document: Mapping[str, Any]) -> LearningRateSchedule:
    """The schedule of `KNOWN` that `{"class_name", "config"}` describes.

    Raises:
      HyperparameterError: a class that is not a stock one; give the live object instead.
    """
    name = str(document.get("class_name"))
    home = str(document.get("module") or "keras").split(".")[0]
    if name not in KNOWN or home not in HOMES or document.get("registered_name") not in (None, name):
        raise HyperparameterError(
            f"learning_rate is the schedule {name!r}, which is not one of Keras's ({', '.join(STOCK)});"
            " put the live schedule object into config['learning_rate']"
        )
    try:
        return KNOWN[name].from_config(document["config"])
    except (KeyError, TypeError) as error:
        raise HyperparameterError(f"the config of schedule {name} does not fit it: {error}") from error
