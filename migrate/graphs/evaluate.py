"""Evaluate nodes of a graph in float64 at chosen values of its variables and gradients. TensorFlow isn't used.

A value is an array, or one number for all elements, and every op works element by element. `UnknownError` is raised for
any other op, a damaged one, a cycle, or more than `MOST` nodes: nothing is guessed. A variable has its first value
until an assignment that the reader waits for has changed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from migrate.graphs.nodes import BOOL, DOUBLE, FLOAT, INT32, INT64, Nodes, Write, node_of

MOST = 3_000
"""Nodes of one update. The rules of `optim` need about fifty."""
_INPUTS = 500
"""Inputs of one op."""
_PASSED_ON = ("Identity", "ReadVariableOp", "Enter", "Snapshot", "StopGradient", "CheckNumerics", "PreventGradient")
_UNARY: Mapping[str, Callable[..., Any]] = {
    "Sqrt": np.sqrt,
    "Rsqrt": lambda x: 1.0 / np.sqrt(x),
    "Square": np.square,
    "Neg": np.negative,
    "Abs": np.abs,
    "Sign": np.sign,
    "Exp": np.exp,
    "Log": np.log,
    "Log1p": np.log1p,
    "Tanh": np.tanh,
    "Reciprocal": lambda x: 1.0 / x,
    "Inv": lambda x: 1.0 / x,
    "LogicalNot": np.logical_not,
    "ZerosLike": lambda x: np.zeros(()),
    "OnesLike": lambda x: np.ones(()),
}
_BINARY: Mapping[str, Callable[..., Any]] = {
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "RealDiv": np.divide,
    "Div": np.divide,
    "Pow": np.power,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "SquaredDifference": lambda a, b: np.square(a - b),
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
}
_THREE: Mapping[str, Callable[..., Any]] = {
    "Select": np.where,
    "SelectV2": np.where,
    "ClipByValue": lambda x, low, high: np.minimum(np.maximum(x, low), high),
}
FUNCTIONS = {**_UNARY, **_BINARY, **_THREE}
_FLOATS_ONLY = ("Div", "RealDiv", "Pow")
"""Ops that round to whole numbers if they are given whole numbers."""
_ASSIGNED: Mapping[str, Callable[..., Any]] = {
    "Assign": lambda old, new: new,
    "AssignVariableOp": lambda old, new: new,
    "AssignAdd": np.add,
    "AssignAddVariableOp": np.add,
    "AssignSub": np.subtract,
    "AssignSubVariableOp": np.subtract,
}
_SCATTERED: Mapping[str, Callable[..., Any]] = {
    "ScatterAdd": np.add,
    "ScatterSub": np.subtract,
    "ScatterUpdate": _ASSIGNED["Assign"],
}
_GATHERS = ("Gather", "GatherV2", "ResourceGather")


Writes = Mapping[str, Sequence[Write]]
"""The assignments of each variable in one step."""


class UnknownError(Exception):
    """A node that can't be evaluated; holds its name."""


def _scattered(op: str) -> Callable[..., Any] | None:
    return _SCATTERED.get(op.removeprefix("Resource"))


def assignments(nodes: Nodes, names: Iterable[str]) -> dict[str, list[Write]]:
    """Group the assignments among these ops by variable, whether they set all of it or rows."""
    writes: dict[str, list[Write]] = {}
    for name in names:
        op, inputs = nodes.op(name), nodes.inputs[name]
        if (op in _ASSIGNED or _scattered(op)) and len(inputs) > 1 and not nodes.is_no_step(name):
            target = changed(nodes, name)
            writes.setdefault(target, []).append(Write(name, target, inputs[-1]))
    return writes


def changed(nodes: Nodes, op: str) -> str:
    """The variable that an op changes. In TF 1.0 an op may follow an `Assign` instead of the variable."""
    target = nodes.target(nodes.inputs[op][0])
    return nodes.target(nodes.inputs[target][0]) if nodes.op(target) == "Assign" else target


def rows_of(nodes: Nodes, traced: Iterable[str]) -> set[str]:
    """The nodes with the row numbers that ops read or change."""
    moving = [name for name in traced if nodes.op(name) in _GATHERS or _scattered(nodes.op(name))]
    return {nodes.source(nodes.inputs[name][1]) for name in moving if len(nodes.inputs[name]) > 1}


def can_evaluate(nodes: Nodes, name: str) -> bool:
    """Whether a node computes its value from its inputs, element by element.

    For reads and changes of rows, the elements are those of rows that have a gradient: callers check that all use the
    same rows.
    """
    op = nodes.op(name)
    if op in _GATHERS:
        axis = nodes.inputs[name][2:]
        return not axis or nodes.constant(axis[0]) == 0
    if op == "Cast":
        return _is_exact_cast(nodes, name)
    if op == "Fill":
        return True
    if op in _FLOATS_ONLY and _type(nodes, name, "T") in (INT32, INT64):
        return False
    is_elementwise = op in _UNARY or op in _BINARY or op in _THREE or op in _ASSIGNED or op in ("AddN", *_PASSED_ON)
    return is_elementwise or _scattered(op) is not None


def _type(nodes: Nodes, name: str, key: str) -> int:
    attribute = nodes.attribute(name, key)
    return 0 if attribute is None else int(attribute.type)


def _is_exact_cast(nodes: Nodes, name: str) -> bool:
    """Whether a cast changes no number. Float32 counts as float64 here."""
    source, target = (_type(nodes, name, key) for key in ("SrcT", "DstT"))
    return source in (FLOAT, DOUBLE, INT32, INT64, BOOL) and target in (FLOAT, DOUBLE)


def _inputs(nodes: Nodes, name: str, writes: Writes) -> list[str]:
    """The outputs that a node reads, `NODE` or `NODE:1`; instead of a variable, the assignment that changed it
    before."""
    input_names = [str(input_name) for input_name in nodes.by_name[name].input if not input_name.startswith("^")]
    if len(input_names) > _INPUTS:
        raise UnknownError(name)
    outputs = [_passed_on(nodes, input_name) for input_name in input_names]
    op = nodes.op(name)
    if (op in _ASSIGNED or _scattered(op)) and outputs:
        outputs[0] = nodes.target(outputs[0])
    inputs = [_as_read(nodes, name, output, writes) for output in outputs]
    if _scattered(op):
        return [inputs[0], *inputs[2:]]
    return inputs[:1] if op in _GATHERS else inputs[1:] if op == "Fill" else inputs


def _as_read(nodes: Nodes, reader: str, output: str, writes: Writes) -> str:
    """Resolve a read variable to its latest assignment. Readers with one input and no control edge wait for nothing."""
    ops = [write.op for write in writes.get(output, ()) if write.op != reader]
    if not ops or len(nodes.by_name[reader].input) < 2:
        return output
    before = nodes.waits_for(reader)
    return last(nodes, [op for op in ops if op in before]) or output


def last(nodes: Nodes, assignments: Sequence[str]) -> str:
    """Return the assignment that waits for all others; may be empty.

    Raises:
      UnknownError: no order is certain.
    """
    if len(assignments) < 2:
        return next(iter(assignments), "")
    if len(assignments) > _INPUTS:
        raise UnknownError(assignments[0])
    for assignment in assignments:
        if nodes.waits_for(assignment).issuperset(set(assignments) - {assignment}):
            return assignment
    raise UnknownError(assignments[0])


def _passed_on(nodes: Nodes, output: str) -> str:
    """Normalize an output: remove `:0` and look through `IdentityN`."""
    name, _, place = output.partition(":")
    for _ in range(len(nodes.by_name)):
        number = int(place.rpartition(":")[2] or 0)
        inputs = [str(i) for i in nodes.by_name[name].input] if nodes.op(name) == "IdentityN" else []
        if number >= len(inputs):
            break
        name, _, place = inputs[number].removeprefix("^").partition(":")
    number = int(place.rpartition(":")[2] or 0)
    return f"{name}:{number}" if number else name


def number_of(nodes: Nodes, name: str) -> np.ndarray | None:
    """The number of a constant with one distinct value, as the program wrote it (0.9, which float32 rounds), or
    None."""
    content = nodes.content(name)
    if content is None or not content.numbers or content.numbers.count(content.numbers[0]) < len(content.numbers):
        return None
    number = content.numbers[0]
    return np.asarray(float(str(np.float32(number))) if content.dtype == FLOAT else number)


def trace(nodes: Nodes, outputs: Sequence[str], stop: Callable[[str], bool], writes: Writes) -> dict[str, list[str]]:
    """List all outputs that some outputs depend on, each after its inputs. Outputs where evaluation starts have no
    inputs.

    Args:
      stop: whether to start at an output although its op is known.
      writes: a reader that waits for one of these assignments reads its result.

    Raises:
      UnknownError: more than `MOST`, a cycle, or assignments in no certain order.
    """
    inputs: dict[str, list[str]] = {}
    opened: dict[str, list[str]] = {}
    todo = list(outputs)
    while todo:
        output = todo[-1]
        if output in inputs:
            todo.pop()
            continue
        if output in opened:
            inputs[todo.pop()] = opened[output]
            continue
        if len(opened) >= MOST:
            raise UnknownError(output)
        starts = stop(output) or node_of(output) != output or not can_evaluate(nodes, output)
        opened[output] = [] if starts else _inputs(nodes, output, writes)
        missing = [i for i in opened[output] if i not in inputs]
        if any(i in opened for i in missing):
            raise UnknownError(output)
        todo += missing
    return inputs


def evaluate(
    nodes: Nodes, traced: Mapping[str, Sequence[str]], start_values: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Compute the values of outputs in float64, without those that are unknown.

    Args:
      traced: the result of `trace`. start_values: values where the evaluation starts, except constants.
    """
    values: dict[str, np.ndarray] = {}
    for output, inputs in traced.items():
        value = start_values.get(output)
        if value is None and not inputs and nodes.op(output) == "Const":
            value = number_of(nodes, output)
        if value is None and inputs and all(input_name in values for input_name in inputs):
            with np.errstate(all="ignore"):
                value = _computed(nodes.op(output), [values[input_name] for input_name in inputs])
        if value is not None:
            values[output] = value
    return values


def _computed(op: str, values: Sequence[np.ndarray]) -> np.ndarray | None:
    if op == "AddN":
        return np.asarray(sum(np.asarray(value, float) for value in values))
    if op in ("Cast", "Fill", *_GATHERS, *_PASSED_ON):
        return values[0] if len(values) == 1 else None
    op = op.removeprefix("Resource")
    tables = {1: (_UNARY,), 2: (_BINARY, _ASSIGNED, _SCATTERED), 3: (_THREE,)}.get(len(values), ())
    function = next((table[op] for table in tables if op in table), None)
    chosen_by = {1: "LogicalNot", 2: "LogicalAnd LogicalOr", 3: "Select SelectV2"}.get(len(values), "").split()
    if op in chosen_by and any(value.dtype != bool for value in values[: 1 if len(values) == 3 else None]):
        return None
    numbers = [value if value.dtype == bool else np.asarray(value, float) for value in values]
    return None if function is None else np.asarray(function(*numbers))
