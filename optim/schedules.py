"""Learning-rate schedules with the names, arguments and formulas of Keras, computed in float64: in TensorFlow where a
schedule is called, and by NumPy alone in `at`.

They exist so that an optimizer's config can be read back without Keras: any stock schedule of Keras 3, tf_keras or
tf.keras is described by `{"class_name", "config"}`, and `from_config` gives the class of that name from here. Keras
computes in float32: `"dtype": "float32"` says so of one of Keras's own, and the class from here then does as well, op
by op, so that training resumes with the same bits.
Formulas: `keras/src/optimizers/schedules/learning_rate_schedule.py`, Keras 3. `Formula` is none of theirs: it is what
the graph of a TensorFlow 1 program computes.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from optim.errors import HyperparameterError

if TYPE_CHECKING:
    import tensorflow as tf


def _finite(name: str, value: Any) -> float:
    """The number, or what a scalar tensor or variable holds now (an optimizer's `learning_rate`, for one)."""
    number = float(value) if type(value) in (int, float) else _to_number(name, value)
    if number is None or not math.isfinite(number):
        raise HyperparameterError(f"{name} must be a finite number, got {value!r}")
    return number


def _to_number(name: str, value: Any) -> float | None:
    from optim import hyperparameters

    return hyperparameters.to_number(name, value)


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

    def at(self, step: int) -> float:
        """The same as a number."""
        return float(self(step))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments as JSON values."""
        return dict(vars(self))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LearningRateSchedule:
        return cls(**config)


class Stock(LearningRateSchedule):
    """One of Keras's. Its formula is written once, on an array namespace, as those of rules are."""

    _dtype = "float64"
    """In which dtype it is computed; `from_config` sets that of Keras."""
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


class ExponentialDecay(Stock):
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

    def formula(self, xp: Any, step: Any) -> Any:
        periods = step / self.decay_steps
        if self.staircase:
            periods = xp.floor(periods)
        return self.initial_learning_rate * xp.power(xp.zeros_like(step) + self.decay_rate, periods)


class InverseTimeDecay(Stock):
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

    def formula(self, xp: Any, step: Any) -> Any:
        periods = step / self.decay_steps
        if self.staircase:
            periods = xp.floor(periods)
        return self.initial_learning_rate / (1.0 + self.decay_rate * periods)


class PiecewiseConstantDecay(Stock):
    """values[k] while step <= boundaries[k], and the last value after the last boundary."""

    _counts_whole = True

    def __init__(self, boundaries: Sequence[float], values: Sequence[float], name: str = "PiecewiseConstant"):
        if len(boundaries) != len(values) - 1:
            raise HyperparameterError(
                f"values must be one longer than boundaries, got {len(values)} and {len(boundaries)}"
            )
        self.boundaries = [_finite("boundaries", b) for b in boundaries]
        if self.boundaries != sorted(self.boundaries):  # Keras 3 adds up values there, TensorFlow's own step fails
            raise HyperparameterError(f"boundaries must be in ascending order, got {boundaries!r}")
        self.values = [_finite("values", v) for v in values]
        self.name = name

    def formula(self, xp: Any, step: Any) -> Any:
        rate = xp.zeros_like(step) + self.values[-1]
        for boundary, value in zip(reversed(self.boundaries), reversed(self.values[:-1]), strict=True):
            rate = xp.where(step <= boundary, xp.zeros_like(step) + value, rate)
        return rate


class PolynomialDecay(Stock):
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

    def formula(self, xp: Any, step: Any) -> Any:
        steps: Any = self.decay_steps
        if self.cycle:
            steps = xp.maximum(xp.ceil(step / steps), 1.0) * steps
        else:
            step = xp.minimum(step, steps)
        left = xp.power(1.0 - step / steps, self.power)
        height = self._rounded(self._rounded(self.initial_learning_rate) - self._rounded(self.end_learning_rate))
        return height * left + self.end_learning_rate


class CosineDecay(Stock):
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

    def _decayed(self, xp: Any, step: Any, steps: Any, top: Any) -> Any:
        cosine = 0.5 * (1.0 + xp.cos(math.pi * (step / steps)))
        return top * ((1.0 - self.alpha) * cosine + self.alpha)

    def formula(self, xp: Any, step: Any) -> Any:
        if self.warmup_target is None:
            step = xp.minimum(step, self.decay_steps)
            return self._decayed(xp, step, self.decay_steps, self.initial_learning_rate)
        numbers = (self.decay_steps, max(self.warmup_steps, 1e-30), self.warmup_target, self.initial_learning_rate)
        steps, warm_up, target, initial = (self._outside(xp, number) for number in numbers)
        step = xp.minimum(step, self._rounded(self._rounded(self.decay_steps) + self._rounded(self.warmup_steps)))
        return self._either(
            xp,
            step < self.warmup_steps,
            lambda: (target - initial) * (step / warm_up) + initial,
            lambda: self._decayed(xp, step - self.warmup_steps, steps, target),
        )


class CosineDecayRestarts(Stock):
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

    def formula(self, xp: Any, step: Any) -> Any:
        fraction = step / self.first_decay_steps
        if self.t_mul == 1.0:
            restarts = xp.floor(fraction)
            fraction = fraction - restarts
        else:
            ratio = xp.zeros_like(step) + self.t_mul
            restarts = xp.floor(xp.log(1.0 - fraction * (1.0 - ratio)) / xp.log(ratio))
            before = (1.0 - ratio**restarts) / (1.0 - ratio)
            fraction = (fraction - before) / ratio**restarts
        top = (xp.zeros_like(step) + self.m_mul) ** restarts
        cosine = 0.5 * top * (1.0 + xp.cos(math.pi * fraction))
        alpha = self._rounded(self.alpha)
        return self.initial_learning_rate * (self._rounded(1.0 - alpha) * cosine + alpha)


STOCK: dict[str, type[Stock]] = {
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
            rate = self._first()
        except Exception as error:  # TensorFlow's own errors are no built-in ones
            text = str(error).strip().partition("\n")[0]
            raise HyperparameterError(f"operations of a Formula cannot be computed: {text}") from error
        if len(rate.shape) or rate.dtype.name not in ("float32", "float64"):
            raise HyperparameterError(
                f"operations of a Formula must give one number, got {rate.dtype.name} {tuple(rate.shape)}"
            )

    def _first(self) -> Any:
        """The rate of the first step, in TensorFlow where that is installed, whose ops refuse more."""
        if find_spec("tensorflow") is None:
            return self._computed(0, np.asarray, np.asarray, _in_numpy)
        import tensorflow as tf

        with tf.init_scope():
            return self(0)

    def __call__(self, step: Any) -> tf.Tensor:
        import tensorflow as tf

        return self._computed(step, tf.constant, tf.cast, lambda op, inputs: getattr(tf.raw_ops, op)(**inputs))

    def at(self, step: int) -> float:
        with np.errstate(all="ignore"):  # both sides of a choice are computed
            return float(self._computed(step, np.asarray, np.asarray, _in_numpy))

    def _computed(
        self,
        step: Any,
        constant: Callable[[Any, str], Any],
        cast: Callable[[Any, str], Any],
        run: Callable[[str, Mapping[str, Any]], Any],
    ) -> Any:
        made: list[Any] = []
        for op, *taken in self.operations:
            if op not in ("Step", "Const", "Cast"):
                inputs = zip(self.TAKES[op].split(), (made[place] for place in taken), strict=True)
                made.append(run(op, dict(inputs)))
                continue
            dtype = taken[0 if op != "Cast" else 1]
            if dtype not in self.DTYPES:
                raise ValueError(f"{dtype!r} is none of {', '.join(self.DTYPES)}")
            made.append(
                constant(taken[1], dtype) if op == "Const" else cast(step if op == "Step" else made[taken[0]], dtype)
            )
        return made[-1]


_IN_NUMPY: Mapping[str, Callable[..., Any]] = {
    "AddV2": np.add, "Sub": np.subtract, "Mul": np.multiply, "RealDiv": np.divide, "FloorDiv": np.floor_divide,
    "FloorMod": np.mod, "Pow": np.power, "Minimum": np.minimum, "Maximum": np.maximum, "Less": np.less,
    "LessEqual": np.less_equal, "Greater": np.greater, "GreaterEqual": np.greater_equal, "Equal": np.equal,
    "NotEqual": np.not_equal, "LogicalAnd": np.logical_and, "LogicalOr": np.logical_or, "LogicalNot": np.logical_not,
    "Neg": np.negative, "Abs": np.abs, "Floor": np.floor, "Ceil": np.ceil, "Exp": np.exp, "Log": np.log,
    "Sqrt": np.sqrt, "Rsqrt": lambda x: 1 / np.sqrt(x), "Square": np.square, "Sin": np.sin, "Cos": np.cos,
    "Tanh": np.tanh, "Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "SelectV2": np.where,
    "Max": lambda x, axis: np.max(x, tuple(np.ravel(axis))), "Min": lambda x, axis: np.min(x, tuple(np.ravel(axis))),
    "Sum": lambda x, axis: np.sum(x, tuple(np.ravel(axis)), x.dtype),
    "OneHot": lambda index, depth, on, off: np.where(np.arange(depth) == index, on, off),
}  # fmt: skip
"""`Formula.TAKES` without TensorFlow."""


def _in_numpy(op: str, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.asarray(_IN_NUMPY[op](*inputs.values()))


KNOWN: dict[str, type[LearningRateSchedule]] = {**STOCK, Formula.__name__: Formula}
"""And what is none of Keras's."""
KERAS = ("keras", "tf_keras", "tensorflow")
HOMES = (*KERAS, "builtins", "optim")
"""Packages whose schedule of a stock one's name is that one, in Keras's `{"module", "class_name", ...}`."""


def is_schedule(value: Any) -> bool:
    """Whether `value` is a schedule of ours, of Keras 3, tf_keras or tf.keras (a class of that name in its bases)."""
    return any(base.__name__ == "LearningRateSchedule" for base in type(value).__mro__)


def to_config(schedule: Any) -> dict[str, Any]:
    """`{"class_name", "config"}` of any schedule; its `get_config` must give JSON values.

    `"dtype"` is added to a stock one that is not computed in float64. The class name of one that is called as a stock
    one is, and is none, begins with its module and `>`.
    """
    cls = type(schedule)
    document = {"class_name": cls.__name__, "config": dict(schedule.get_config())}
    if cls.__name__ not in KNOWN:
        return document
    if not _is_from(cls, HOMES):
        return {**document, "class_name": f"{cls.__module__}>{cls.__name__}"}
    dtype = schedule(0).dtype if not isinstance(schedule, LearningRateSchedule) else getattr(schedule, "_dtype", None)
    name = getattr(dtype, "name", dtype)
    return document if name in ("float64", None) else {**document, "dtype": name}


def _is_from(cls: type, homes: tuple[str, ...]) -> bool:
    return cls.__module__.partition(".")[0] in homes


def is_known(document: Mapping[str, Any]) -> bool:
    """Whether `from_config` has the class that a document names."""
    name, home = str(document.get("class_name")), str(document.get("module") or "keras").partition(".")[0]
    return name in KNOWN and home in HOMES and document.get("registered_name") in (None, name)


def from_config(document: Mapping[str, Any]) -> LearningRateSchedule:
    """The schedule of `KNOWN` that `{"class_name", "config"}` describes, as `to_config` or Keras writes it.

    Raises:
      HyperparameterError: a class that is not a stock one; give the live object instead.
    """
    name = str(document.get("class_name"))
    if not is_known(document):
        raise HyperparameterError(
            f"learning_rate is the schedule {name!r}, which is not one of Keras's ({', '.join(STOCK)});"
            " put the live schedule object into config['learning_rate']"
        )
    try:
        made = KNOWN[name].from_config(document["config"])
    except (KeyError, TypeError) as error:
        raise HyperparameterError(f"the config of schedule {name} does not fit it: {error}") from error
    dtype = document.get("dtype", "float32" if str(document.get("module")).partition(".")[0] in KERAS else "float64")
    if isinstance(made, Stock) and dtype != "float64":
        made._dtype = str(dtype)
    return made
