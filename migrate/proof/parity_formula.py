"""Evaluate the ops of an `optim.schedules.Formula` at a step, in NumPy and each in its own dtype.

Ops as `tensorflow/core/ops/math_ops.cc` and `array_ops.cc` 1.15 describe them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from optim.errors import UnsupportedError

_OPS: Mapping[str, Callable[..., Any]] = {
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "RealDiv": np.divide,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Pow": np.power,
    "Minimum": np.minimum,
    "Maximum": np.maximum,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
    "LogicalNot": np.logical_not,
    "Neg": np.negative,
    "Abs": np.abs,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Exp": np.exp,
    "Log": np.log,
    "Sqrt": np.sqrt,
    "Rsqrt": lambda x: np.reciprocal(np.sqrt(x)),
    "Square": np.square,
    "Sin": np.sin,
    "Cos": np.cos,
    "Tanh": np.tanh,
    "Sigmoid": lambda x: np.reciprocal(x.dtype.type(1) + np.exp(-x)),
    "Max": lambda x, axis: np.max(x, int(np.ravel(axis)[0])),
    "Min": lambda x, axis: np.min(x, int(np.ravel(axis)[0])),
    "Sum": lambda x, axis: np.sum(x, int(np.ravel(axis)[0]), x.dtype),
    "SelectV2": np.where,
    "OneHot": lambda index, depth, yes, no: np.where(np.arange(int(depth)) == index, yes, no),
}


def rate(operations: Sequence[Sequence[Any]], step: int) -> float:
    """The learning rate of the step after `step` steps. Raises UnsupportedError for an unknown op."""
    results: list[Any] = []
    with np.errstate(all="ignore"):  # both sides of a choice are computed
        for op, *taken in operations:
            if op == "Const":
                results.append(np.asarray(taken[1], taken[0]))
            elif op == "Step":
                results.append(np.asarray(step, taken[0]))
            elif op == "Cast":
                results.append(np.asarray(results[taken[0]]).astype(taken[1]))
            elif op in _OPS:
                results.append(np.asarray(_OPS[op](*(results[place] for place in taken))))
            else:
                raise UnsupportedError(f"the learning rate is a Formula with the op {op!r}, which verify does not know")
    return float(results[-1])
