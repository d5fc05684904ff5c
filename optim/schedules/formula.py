"""A rate that the graph of a TensorFlow 1 program computes, op by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from optim.errors import HyperparameterError
from optim.schedules.base import KNOWN, LearningRateSchedule

if TYPE_CHECKING:
    import tensorflow as tf


class Formula(LearningRateSchedule):
    """A rate that ops of TensorFlow compute from the step, one after another, in the dtypes of the original program.

    Args:
      operations: lists of an op's name and its inputs: `["Step", DTYPE]`; `["Const", DTYPE, NUMBER or LIST]`;
        `["Cast", PLACE, DTYPE]`; and those of `TAKES` with the positions of their inputs among the earlier ones. The
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
    """Ops of `tf.raw_ops` and the names of their inputs."""
    DTYPES = ("float32", "float64", "int32", "int64", "bool")

    def __init__(self, operations: Sequence[Sequence[Any]], name: str = "Formula"):
        self.operations = [list(operation) for operation in operations]
        self.name = name
        try:
            rate = self._first()
        except Exception as error:  # TensorFlow's own errors are not built-in ones
            text = str(error).strip().partition("\n")[0]
            raise HyperparameterError(f"operations of a Formula cannot be computed: {text}") from error
        if len(rate.shape) or rate.dtype.name not in ("float32", "float64"):
            raise HyperparameterError(
                f"operations of a Formula must give one number, got {rate.dtype.name} {tuple(rate.shape)}"
            )

    def _first(self) -> Any:
        """Return the rate of the first step, with TensorFlow if it is installed, because its ops refuse more."""
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
        values: list[Any] = []
        for op, *places in self.operations:
            if op not in ("Step", "Const", "Cast"):
                inputs = zip(self.TAKES[op].split(), (values[place] for place in places), strict=True)
                values.append(run(op, dict(inputs)))
                continue
            dtype = places[0 if op != "Cast" else 1]
            if dtype not in self.DTYPES:
                raise ValueError(f"{dtype!r} is not one of {', '.join(self.DTYPES)}")
            values.append(
                constant(places[1], dtype)
                if op == "Const"
                else cast(step if op == "Step" else values[places[0]], dtype)
            )
        return values[-1]


KNOWN[Formula.__name__] = Formula

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
