"""The functions that a rule may use of `xp`, the array namespace of its maths.

This one table is the source for the kernel's generator, the executors' namespace, and the check of a user's rule.
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
"""Each elementwise function that has a kernel, and its operation; signatures are numpy's."""

WHOLE = ("reduce_sum", "reduce_mean", "expand_dims")
"""Further functions with a kernel, for rules that are not elementwise."""


def allowed() -> str:
    """Return the functions' names for messages and documentation."""
    return " ".join(sorted(ELEMENTWISE))
