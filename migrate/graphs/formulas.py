"""Read a learning rate as the ops that compute it from the global step; `optim.schedules.Formula` computes it again.

Only deterministic ops on scalars and lists are read, with the dtypes of the graph. `tf.cond` is a `Merge` of two sides
after a `Switch`; both sides are computed here, and one is chosen. With any other op there is no formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from migrate.graphs.evaluate import FUNCTIONS
from migrate.graphs.nodes import BOOL, DOUBLE, FLOAT, INT32, INT64, VARIABLES, Nodes
from migrate.graphs.patterns import STEP, Captures, match

MOST = 2_000
"""Most operations of one rate."""
_DTYPES: Mapping[int, str] = {FLOAT: "float32", DOUBLE: "float64", INT32: "int32", INT64: "int64", BOOL: "bool"}
"""By DataType."""
_FLOATS, _NUMBERS, _BOOL = ("float32", "float64"), ("float32", "float64", "int32", "int64"), ("bool",)
_HANDED_ON = ("Identity", "ReadVariableOp", "Snapshot", "StopGradient", "CheckNumerics", "Print")
_CALLED = {"Add": "AddV2", "Div": "RealDiv", "Select": "SelectV2"}
"""Ops that have another name today; `Div` divides floats here, never whole numbers."""
_ONE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("Floor", "Ceil", "Exp", "Log", "Sqrt", "Rsqrt", "Sin", "Cos", "Tanh", "Sigmoid"), _FLOATS),
    **dict.fromkeys(("Neg", "Abs", "Square"), _NUMBERS),
    "LogicalNot": _BOOL,
}
"""Ops with one input."""
TAKEN: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("AddV2", "Sub", "Mul", "FloorDiv", "FloorMod", "Minimum", "Maximum"), _NUMBERS),
    **dict.fromkeys(("Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual"), _NUMBERS),
    **dict.fromkeys(("RealDiv", "Pow"), _FLOATS),
    **dict.fromkeys(("LogicalAnd", "LogicalOr"), _BOOL),
    **_ONE,
}
"""Attributes with the dtype of an op's inputs, all of one dtype."""
TESTS = ("Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual")


class _Value(NamedTuple):
    """An operation: its place, its value, and the sides of conditions it is on as (place of the condition, side)."""

    place: int
    dtype: str
    shape: tuple[int, ...]
    sides: frozenset[tuple[int, bool]] = frozenset()


class _NoFormulaError(Exception):
    """An op that no formula may have, or a damaged one."""


_FOLDED = {op: FUNCTIONS[op] for op in ("AddV2", "Sub", "Mul", "RealDiv", "Minimum", "Maximum", "Sqrt", "Neg")}
"""Ops that round like numpy."""


def read(nodes: Nodes, name: str) -> list[list[Any]] | float | None:
    """Return the `operations` of a rate, a number if only constants are involved, or None."""
    formula = _Formula(nodes)
    try:
        rate = formula.value(name)
    except (_NoFormulaError, AttributeError, LookupError, RecursionError, ValueError):
        return None
    if rate.dtype not in _FLOATS or rate.shape or rate.sides:
        return None
    operations = formula.until(rate.place)
    return operations if formula.has_step else _folded(operations)


def _folded(operations: list[list[Any]]) -> float | None:
    values: list[Any] = []
    for op, *operands in operations:
        if op == "Const" and not isinstance(operands[1], list):
            values.append(np.dtype(operands[0]).type(operands[1]))
        elif op == "Cast":
            values.append(np.dtype(operands[1]).type(values[operands[0]]))
        elif op in _FOLDED:
            with np.errstate(all="ignore"):
                values.append(_FOLDED[op](*(values[place] for place in operands)))
        else:
            return None
    return float(values[-1]) if math.isfinite(values[-1]) else None


class _Formula:
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._operations: list[list[Any]] = []
        self._values: dict[str, _Value] = {}
        self.has_step = False

    def until(self, place: int) -> list[list[Any]]:
        return self._operations[: place + 1]

    def value(self, name: str) -> _Value:
        """Evaluate an output, `NODE` or `NODE:1`."""
        name = name.removesuffix(":0")
        if name not in self._values:
            self._values[name] = self._computed(name)
        return self._values[name]

    def _computed(self, name: str) -> _Value:
        nodes, (node, _, output) = self._nodes, name.partition(":")
        op = nodes.op(node)
        if output and (op, output) not in (("Switch", "1"), ("RefSwitch", "1")):
            raise _NoFormulaError
        waits = frozenset(side for switch in nodes.sides(node) for side in self.value(switch).sides)
        if op == "Const" or op in VARIABLES:
            number = self._number(node)
            return number._replace(sides=waits)
        names = [str(input_name) for input_name in nodes.by_name[node].input if not input_name.startswith("^")]
        inputs = [self.value(input_name) for input_name in (names[:1] if op == "Print" else names)]
        if op == "Merge":
            return self._merged(*inputs) if len(inputs) == 2 else _fail()
        sides = waits.union(*(value.sides for value in inputs))
        if op in ("Switch", "RefSwitch"):
            data, condition = inputs
            self._need(condition.dtype == "bool" and condition.shape == ())
            return data._replace(sides=sides | {(condition.place, output == "1")})
        if op in _HANDED_ON:
            self._need(len(inputs) == 1)
            return inputs[0]._replace(sides=sides)
        return self._value_of_op(node, op, inputs)._replace(sides=sides)

    def _number(self, node: str) -> _Value:
        nodes, content = self._nodes, self._nodes.content(node)
        if nodes.op(node) == "Const":
            if content is None or len(content.shape) > 1:
                raise _NoFormulaError
            numbers = list(content.numbers) if content.shape else content.numbers[0]
            self._need(all(map(math.isfinite, content.numbers)))
            return self._add(["Const", _DTYPES[content.dtype], numbers], _DTYPES[content.dtype], content.shape)
        dtype = _DTYPES[nodes.attribute(node, "dtype").type]
        if node in nodes.values:
            number = nodes.values[node]
            self._need(math.isfinite(number))
            return self._add(["Const", dtype, number if dtype in _FLOATS else int(number)], dtype)
        self._need(match(nodes, node, STEP, Captures()))
        self.has_step = True
        return self._add(["Step", dtype], dtype)

    def _merged(self, a: _Value, b: _Value) -> _Value:
        """Merge the sides of a `tf.cond`: they differ only in the condition, and exactly one has a value."""
        (mine,), (other,) = a.sides - b.sides, b.sides - a.sides
        self._need(mine[0] == other[0] and (a.dtype, a.shape) == (b.dtype, b.shape))
        yes, no = (a, b) if mine[1] else (b, a)
        choice = self._add(["SelectV2", mine[0], yes.place, no.place], a.dtype, a.shape)
        return choice._replace(sides=a.sides & b.sides)

    def _value_of_op(self, node: str, op: str, inputs: Sequence[_Value]) -> _Value:
        op, places = _CALLED.get(op, op), [value.place for value in inputs]
        dtypes = {value.dtype for value in inputs}
        shape = max((value.shape for value in inputs), key=len)
        if op == "Cast":
            dtype = _DTYPES[self._nodes.attribute(node, "DstT").type]
            self._need(len(inputs) == 1 and not self._nodes.flag(node, "Truncate"))
            return self._add([op, *places, dtype], dtype, shape)
        if op in TAKEN:
            alike = {value.shape for value in inputs} <= {(), shape}
            self._need(len(dtypes) == 1 and dtypes <= set(TAKEN[op]) and alike and len(inputs) == 2 - (op in _ONE))
            by = self._operations[places[-1]]
            self._need(op not in ("FloorDiv", "FloorMod") or (by[0] == "Const" and by[2] not in (0, 0.0)))
            return self._add([op, *places], "bool" if op in TESTS else inputs[0].dtype, shape)
        if op == "SelectV2":
            condition, yes, no = inputs
            self._need(condition.dtype == "bool" and yes.dtype == no.dtype and yes.shape == no.shape)
            self._need(condition.shape in ((), yes.shape))
            return self._add([op, *places], yes.dtype, yes.shape)
        if op in ("Max", "Min", "Sum"):
            numbers, axis = inputs
            self._need(not self._nodes.flag(node, "keep_dims") and len(numbers.shape) == 1)
            self._need(self._operations[axis.place] in (["Const", "int32", [0]], ["Const", "int32", 0]))
            return self._add([op, *places], numbers.dtype)
        if op == "OneHot":
            index, depth, *values = inputs
            self._need((index.shape, depth.dtype, len({v.dtype for v in values})) == ((), "int32", 1))
            self._need(
                getattr(self._nodes.attribute(node, "axis"), "i", -1) == -1
                and self._operations[depth.place][0] == "Const"
            )
            return self._add([op, *places], values[0].dtype, (int(self._operations[depth.place][2]),))
        return _fail()

    def _add(self, operation: list[Any], dtype: str, shape: tuple[int, ...] = ()) -> _Value:
        self._need(len(self._operations) < MOST)
        if operation not in self._operations[-1:]:
            self._operations.append(operation)
        return _Value(len(self._operations) - 1, dtype, shape)

    def _need(self, holds: bool) -> None:
        if not holds:
            _fail()


def _fail() -> Any:
    raise _NoFormulaError
