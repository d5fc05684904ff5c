"""Read steps inside a `tf.cond`: only if the gradients are finite, or only every n-th call.

A `tf.cond` has a `Switch` for each input, on one condition, and a `Merge` for each output. If the condition is known,
only one side of the graph remains. `taken` returns it, so that the other files never meet a condition. Nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from migrate.graphs.clipping import clipped
from migrate.graphs.nodes import BOOL, INT32, INT64, Nodes, node_of

_SWITCHES = ("Switch", "RefSwitch")
_MERGES = ("Merge", "RefMerge")
_STEPS = re.compile(r"(?:Resource)?(?:(?:Sparse)?Apply\w+|Assign\w*|Scatter\w+)")
_TESTS = {"IsFinite": True, "IsNan": False, "IsInf": False}
_SAME = ("Identity", "All", "Any", "Reshape", "ExpandDims", "Squeeze", "StopGradient")
_EACH = ("Pack", "ConcatV2", "LogicalAnd", "LogicalOr")
_OF_GRADIENTS = (
    "Const L2Loss Sqrt Square Mul Sum Mean Max Abs AddN Add AddV2 RealDiv Div Reciprocal Pack Reshape Cast "
    "Identity ReadVariableOp Range Rank Minimum Maximum Rsqrt Select SelectV2 Greater ZerosLike IsFinite "
    "ClipByValue Neg Exp"
)
"""Ops between gradients and a number that is finite if the gradients are."""
_QUOTIENTS = ("RealDiv", "Div", "Reciprocal", "Rsqrt")
_COUNTING = (
    "Const Placeholder PlaceholderWithDefault AssignAdd Identity ReadVariableOp Cast Add AddV2 Sub Mul Mod FloorMod "
    "FloorDiv Equal NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr LogicalNot"
)
"""Ops of a condition that counts calls or that the program feeds."""


@dataclass(frozen=True)
class Taken:
    """A graph of the sides on which variables are trained.

    Attributes:
      branches: the conditions of each node that runs on one side only, without tests for finite gradients.
      doubt: why a condition is not understood.
    """

    nodes: Nodes
    branches: Mapping[str, frozenset[str]]
    doubt: str = ""


def taken(protos: Sequence[Any], functions: Mapping[str, Any], trained: Collection[str]) -> Taken:
    """Return the graph with only those sides of conditions that train variables.

    Args:
      trained: trained variables in addition to those that an optimizer's kernels update.
    """
    nodes = _without_constant_ones(Nodes(protos, functions))
    branches: dict[str, frozenset[str]] = {}
    doubt = ""
    for _ in range(_MOST):
        choice = next(
            ((p, s) for p in _conditions(nodes, trained) if (s := _common_side(nodes, p, trained)) is not None), None
        )
        if choice is None:
            break
        condition, side = choice
        branch = _unused_nodes(nodes, {condition: not side})
        doubt = doubt or _left_out(nodes, branch)
        if _is_guard(nodes, condition) is not side:
            for node in branch:
                branches[node] = branches.get(node, frozenset()) | {condition}
            if not _counts(nodes, condition):
                doubt = f"{condition!r} ({nodes.op(condition)}) decides at which steps variables are updated"
        nodes = Nodes(_folded(nodes, {condition: side}), functions)
    finite = {condition: _is_guard(nodes, condition) for condition in set(_switches(nodes).values())}
    guards = {condition: end for condition, end in finite.items() if end is not None}
    return Taken(Nodes(_folded(nodes, guards), functions) if guards else nodes, branches, doubt)


_MOST = 20
"""Conditions of one graph."""


def _without_constant_ones(nodes: Nodes) -> Nodes:
    """Resolve conditions that are constants. Horovod adds one per gradient: whether there is more than one worker."""
    contents = {condition: nodes.content(condition) for condition in set(_switches(nodes).values())}
    sides = {
        condition: bool(value.numbers[0])
        for condition, value in contents.items()
        if value is not None and value.dtype == BOOL and len(value.numbers) == 1
    }
    return Nodes(_folded(nodes, sides), nodes.functions) if sides else nodes


def _condition(nodes: Nodes, switch: str) -> str:
    return nodes.source(nodes.inputs[switch][1]) if len(nodes.inputs[switch]) > 1 else ""


def _conditions(nodes: Nodes, trained: Collection[str]) -> Iterator[str]:
    """Yield the conditions that the steps depend on; the outermost of each step first."""
    seen: set[str] = set()
    for step in _steps(nodes, trained):
        chain, name = list[str](), nodes.source(nodes.inputs[step][0])
        while nodes.op(name) in _SWITCHES and name not in chain:
            chain.append(name)
            name = nodes.source(nodes.inputs[name][0])
        for switch in reversed(chain):
            condition = _condition(nodes, switch)
            if condition and condition not in seen:
                seen.add(condition)
                yield condition


def _steps(nodes: Nodes, trained: Collection[str]) -> list[str]:
    return [
        name
        for name, inputs in nodes.inputs.items()
        if inputs
        and _STEPS.fullmatch(nodes.op(name))
        and not nodes.is_no_step(name)
        and nodes.op(nodes.source(inputs[0])) in _SWITCHES
        and ("/update_" in name or (nodes.target(inputs[0]) in trained and not _counts_by(nodes, inputs)))
    ]


def _counts_by(nodes: Nodes, inputs: Sequence[str]) -> bool:
    """Whether numbers are assigned, as for a loss scale that a program left among its trainable variables."""
    return len(inputs) > 1 and nodes.constant(inputs[1]) is not None


def _common_side(nodes: Nodes, condition: str, trained: Collection[str]) -> bool | None:
    steps = set(_steps(nodes, trained))
    lost = {side: bool(steps & _unused_nodes(nodes, {condition: side})) for side in (True, False)}
    return None if lost[True] == lost[False] else lost[False]


def _left_out(nodes: Nodes, branch: set[str]) -> str:
    """Why a change on one side may never run: the condition's output does not wait for it. Empty if all is well."""
    changes = {node for node in branch if _STEPS.fullmatch(nodes.op(node)) and not nodes.is_no_step(node)}
    ends = (n for n, inputs in nodes.inputs.items() if nodes.op(n) in _MERGES and not branch.isdisjoint(inputs))
    left = changes.difference(*map(nodes.waits_for, ends))
    return (
        f"what comes out of the condition of {min(left)!r} does not wait for it, so that it may never run"
        if left
        else ""
    )


def _unused_nodes(nodes: Nodes, sides: Mapping[str, bool]) -> set[str]:
    dead: set[str] = set()
    outputs = _empty_outputs(_switches(nodes), sides)
    readers: dict[str, list[str]] = {}
    for name, node in nodes.by_name.items():
        for input_name in node.input:
            readers.setdefault(_output(str(input_name)), []).append(name)
    outputs_of: dict[str, list[str]] = {}
    for output in readers:
        outputs_of.setdefault(node_of(output), []).append(output)
    todo = [reader for output in outputs for reader in readers.get(output, ())]
    while todo:
        name = todo.pop()
        if name in dead:
            continue
        inputs = [_output(str(i)) for i in nodes.by_name[name].input if not str(i).startswith("^")]
        alive = [input_name for input_name in inputs if input_name not in outputs and node_of(input_name) not in dead]
        if nodes.op(name) in _MERGES and alive:
            continue
        dead.add(name)
        todo.extend(reader for output in outputs_of.get(name, ()) for reader in readers[output])
    return dead


def _switches(nodes: Nodes) -> dict[str, str]:
    return {name: _condition(nodes, name) for name in nodes.inputs if nodes.op(name) in _SWITCHES}


def _empty_outputs(switches: Mapping[str, str], sides: Mapping[str, bool]) -> set[str]:
    return {f"{name}:{0 if sides[condition] else 1}" for name, condition in switches.items() if condition in sides}


def _output(name: str) -> str:
    """Normalize `^a`, `a` and `a:1` to `^a`, `a:0` and `a:1`."""
    return name if name.startswith("^") or ":" in name else f"{name}:0"


def _folded(nodes: Nodes, sides: Mapping[str, bool]) -> list[Any]:
    """Keep the nodes of one side of each condition, and remove the switches in front of them."""
    switches = {name: condition for name, condition in _switches(nodes).items() if condition in sides}
    dead, empty, protos = _unused_nodes(nodes, sides), _empty_outputs(switches, sides), []
    for name, node in nodes.by_name.items():
        if name in dead or name in switches:
            continue
        changed = type(node)()
        changed.CopyFrom(node)
        del changed.input[:]
        input_names = [str(i) for i in node.input if nodes.op(name) not in _MERGES or _output(str(i)) not in empty]
        inputs = [_without_switch(nodes, input_name, switches) for input_name in input_names]
        left = (node_of(str(input_name)) for input_name in node.input)
        inputs.extend(f"^{condition}" for condition in dict.fromkeys(switches[n] for n in left if n in switches))
        if nodes.op(name) in _MERGES:
            inputs = [i for i in inputs if node_of(i) not in dead]
            changed.op = "Identity" if sum(not i.startswith("^") for i in inputs) == 1 else node.op
        changed.input.extend(inputs)
        protos.append(changed)
    return protos


def _without_switch(nodes: Nodes, name: str, switches: Collection[str]) -> str:
    while node_of(name) in switches:
        before = str(nodes.by_name[node_of(name)].input[0])
        name = f"^{node_of(before)}" if name.startswith("^") else before
    return name


def _is_guard(nodes: Nodes, condition: str) -> bool | None:
    """Return what a condition is if all tested values are finite. They must be gradients or the loss; else None."""
    op, inputs = nodes.op(condition), nodes.parents(condition)
    if op in _TESTS and inputs:
        return _TESTS[op] if _is_of_gradients(nodes, inputs[0]) else None
    if op == "LogicalNot" and inputs:
        guard = _is_guard(nodes, inputs[0])
        return None if guard is None else not guard
    if op in _SAME and inputs:
        return _is_guard(nodes, inputs[0])
    if op in _EACH and inputs:
        values = {_is_guard(nodes, parent) for parent in (inputs[:-1] if op == "ConcatV2" else inputs)}
        return values.pop() if len(values) == 1 else None
    return None


def _is_of_gradients(nodes: Nodes, name: str) -> bool:
    clip = clipped(nodes, name)
    ancestors = list(nodes.ancestors(name if clip is None else clip.gradient, to_gradients=True))
    gradients = [node for node in ancestors if nodes.is_gradient(node)]
    rest = [node for node in ancestors if node not in gradients and node not in nodes.variables]
    by = [nodes.inputs[node][-1] for node in rest if nodes.op(node) in _QUOTIENTS and nodes.inputs[node]]
    divided = any(map(nodes.has_gradients, by))
    is_finite = bool(gradients) and not divided and all(nodes.op(node) in _OF_GRADIENTS.split() for node in rest)
    return is_finite or name in nodes.losses()


def _counts(nodes: Nodes, condition: str) -> bool:
    ancestors = set(nodes.ancestors(condition))
    variables = ancestors & nodes.variables
    types = [nodes.attribute(variable, "dtype") for variable in variables]
    whole = all(dtype is not None and dtype.type in (INT32, INT64, BOOL) for dtype in types)
    return whole and all(nodes.op(node) in _COUNTING.split() for node in ancestors - variables)
