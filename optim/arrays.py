"""What a rule may ask of `xp`, the array namespace that its maths is written on.

One table, from which the kernel's generator, the executors' namespace, and the check of a user's rule come.
"""

from __future__ import annotations

from collections.abc import Mapping

ELEMENTWISE: Mapping[str, str] = {
    "abs": "abs",
    "exp": "exp",
    "log": "log",
    "sign": "sign",
    "sqrt": "sqrt",
    "square": "square",
    "tanh": "tanh",
    "negative": "neg",
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "power": "pow",
    "pow": "pow",
    "maximum": "maximum",
    "minimum": "minimum",
    "less": "less",
    "less_equal": "less_equal",
    "greater": "greater",
    "greater_equal": "greater_equal",
    "equal": "equal",
    "not_equal": "not_equal",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "logical_not": "logical_not",
    "where": "where",
    "ones_like": "ones_like",
    "zeros_like": "zeros_like",
}
"""Each function that has a kernel, element by element, and the operation that it is; signatures are numpy's."""

WHOLE = ("reduce_sum", "reduce_mean", "expand_dims")
"""What a rule that is not elementwise may ask for besides them, and have a kernel."""


def allowed() -> str:
    """For messages and documentation."""
    return " ".join(sorted(ELEMENTWISE))
