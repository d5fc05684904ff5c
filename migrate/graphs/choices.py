"""Read learning rates chosen by comparing the global step with constants, as `tf.train.piecewise_constant` does.

If a number depends only on constants, comparisons of the step, logic and choices (`tf.cond`, `tf.case`, `tf.where`),
it changes only at those constants. Evaluating it there therefore gives the whole schedule.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from migrate.graphs.nodes import PASSING, VARIABLES, Nodes
from migrate.graphs.patterns import STEP, Captures, match

MOST_NODES = 2_000
"""Nodes that a rate may depend on: one of a hundred pieces has a thousand."""

COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "Less": operator.lt,
    "LessEqual": operator.le,
    "Greater": operator.gt,
    "GreaterEqual": operator.ge,
    "Equal": operator.eq,
    "LogicalAnd": lambda a, b: a and b,
    "LogicalOr": lambda a, b: a or b,
}


class _Step(int):
    """The step: it may be compared, and is no rate."""


class _UnknownError(Exception):
    """An op that neither chooses nor compares."""


_DEAD = object()
"""The output of the side of a choice that is not used."""


def read(nodes: Nodes, name: str) -> dict[str, Any] | None:
    """Return the boundaries and values of a rate as in Keras's `PiecewiseConstantDecay`, None for any other rate."""
    ancestors = list(islice(nodes.ancestors(name, with_choices=True), MOST_NODES + 1))
    if len(ancestors) > MOST_NODES:
        return None
    constants = {number for node in ancestors if (number := nodes.constant(node)) is not None and math.isfinite(number)}
    near = {math.floor(constant) + offset for constant in constants for offset in (-1, 0, 1)}
    steps = sorted({0, *(step for step in near if step > 0)})
    try:
        rates = [_value(nodes, name, step, {}) for step in steps]
    except (_UnknownError, RecursionError, LookupError, ArithmeticError, TypeError, ValueError):
        return None  # other ops, or one without the inputs that it needs: the graph is damaged
    if not all(type(rate) is float for rate in rates):
        return None
    changes = [i for i in range(1, len(steps)) if rates[i] != rates[i - 1]]
    if not changes:
        return None
    return {"boundaries": [steps[i - 1] for i in changes], "values": [rates[0], *(rates[i] for i in changes)]}


def _value(nodes: Nodes, name: str, step: int, values: dict[str, Any]) -> Any:
    """Evaluate a node's output at a step: a float, a bool, the step, or `_DEAD`."""
    if name not in values:
        values[name] = _computed(nodes, name, step, values)
    return values[name]


def _computed(nodes: Nodes, name: str, step: int, values: dict[str, Any]) -> Any:
    node, _, output = name.partition(":")
    op = nodes.op(node)
    if any(_value(nodes, side, step, values) is _DEAD for side in nodes.sides(node)):
        return _DEAD
    if op in VARIABLES or op == "Const":
        number = nodes.constant(node)
        if number is None and not match(nodes, node, STEP, Captures()):
            raise _UnknownError
        return _Step(step) if number is None else number
    inputs = [_value(nodes, str(i), step, values) for i in nodes.by_name[node].input if not i.startswith("^")]
    if op == "Merge":
        alive = [value for value in inputs if value is not _DEAD]
        return alive[0] if len(alive) == 1 else _fail() if alive else _DEAD
    if any(value is _DEAD for value in inputs):
        return _DEAD
    if op in PASSING and len(inputs) == 1:
        return inputs[0] if op != "Cast" or inputs[0] == int(inputs[0]) else _fail()
    if op == "Switch":
        return inputs[0] if bool(output == "1") == inputs[1] else _DEAD
    if op in ("Select", "SelectV2"):
        return inputs[1] if inputs[0] else inputs[2]
    if op == "LogicalNot":
        return not inputs[0]
    return COMPARED[op](*inputs) if op in COMPARED else _fail()


def _fail() -> Any:
    raise _UnknownError
