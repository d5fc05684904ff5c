"""Find the ops of a graph that change a variable: all kinds of assignments, also in a `tf.cond`, a loop or a
function."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from migrate.graphs.nodes import Nodes, Write
from migrate.state import MOVING

_CHANGES = re.compile(
    r"(?:Resource)?(?:Assign\w*|Scatter(?:Nd)?(?:Add|Sub|Mul|Div|Min|Max|Update)|StridedSliceAssign|CountUpTo"
    r"|(?:Sparse)?Apply\w+)"
)
"""Ops that change the variable that is their first input (core/ops/state_ops.cc, resource_variable_ops.cc,
array_ops.cc and training_ops.cc 1.15)."""
_FIRST = {"If": 1, "Case": 1, "While": 0, "PartitionedCall": 0, "StatefulPartitionedCall": 0}
"""The input of an op that is the first argument of the functions that it calls."""


def other_writer(nodes: Nodes, variables: Collection[str], ops: Collection[str]) -> str | None:
    """Describe an op that changes one of the variables in a step in addition to their optimizer, or None."""
    writer = next((op for op, changed in writers(nodes) if changed in variables and op not in ops), None)
    return None if writer is None else f"{writer!r} also changes variables or slots of the optimizer"


def alone_written(nodes: Nodes, changed: Mapping[str, Sequence[str]] | None = None) -> dict[str, Write]:
    """The assignment of each variable that exactly one op changes in a step. `changed`: the result of `changers`."""
    writes = {write.op: write for write in nodes.writes()}
    by_variable = changers(nodes) if changed is None else changed
    return {variable: writes[ops[0]] for variable, ops in by_variable.items() if len(ops) == 1 and ops[0] in writes}


def changers(nodes: Nodes, without: Collection[str] = ()) -> dict[str, list[str]]:
    """The ops that change each variable in a step, without assignments of values that read `without`."""
    values = {write.op: write.value for write in nodes.writes()}
    by_variable: dict[str, list[str]] = {}
    for op, variable in writers(nodes):
        if op not in values or nodes.variables_of(values[op]).isdisjoint(without):
            by_variable.setdefault(variable, []).append(op)
    return by_variable


def writers(nodes: Nodes) -> Iterator[tuple[str, str]]:
    """Yield (op, variable that it changes). Excluded are initial values, and values that are fed (`set_weights`), read
    from a checkpoint (`init_from_checkpoint`) or constant (`w.assign(pretrained)`)."""
    changes = _Changes(nodes)
    for name, inputs in nodes.inputs.items():
        value = inputs[1] if len(inputs) > 1 else ""
        gives = nodes.sets_constant(name) or (nodes.op(name).startswith("Assign") and nodes.is_given(value))
        if not gives and not nodes.is_no_step(name):
            yield from ((name, variable) for variable in changes.of(nodes, name))


def rewritten(nodes: Nodes, variables: Mapping[str, str], steps: Collection[str]) -> dict[str, str]:
    """Report hyperparameters that the graph changes, such as a decaying rate.

    Args:
        variables: by hyperparameter. steps: ops of the optimizer's step.
    """
    ops = {variable: op for op, variable in writers(nodes)}
    changed = {key: variable for key, variable in variables.items() if variable in ops}
    texts: dict[str, str] = {}
    for key, variable in changed.items():
        texts |= text_of_writer(nodes, key, variable, ops[variable], steps)
    return texts


def text_of_writer(nodes: Nodes, key: str, variable: str, op: str, steps: Collection[str]) -> dict[str, str]:
    """Report one hyperparameter; if each step changes it, no number is right."""
    how = f"{op!r} in the graph changes the variable {variable!r}, which it is read from"
    return {key: how, **({MOVING + key: f"{key}: {how}"} if _runs_with(nodes, op, steps) else {})}


def _runs_with(nodes: Nodes, op: str, steps: Collection[str]) -> bool:
    """Whether one `run` does an op and one of these: some op waits for both."""
    dependents: set[str] = set()
    todo = [op]
    while todo:
        dependents.add(dependent := todo.pop())
        todo += [name for name in nodes.readers.get(dependent, ()) if name not in dependents]
    steps = set(steps)
    return not dependents.isdisjoint(steps) or any(
        not steps.isdisjoint(nodes.waits_for(dependent)) for dependent in dependents
    )


class _Changes:
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._places: dict[str, frozenset[int]] = {}
        """The arguments that each examined function changes."""

    def of(self, nodes: Nodes, name: str) -> Iterator[str]:
        inputs, op = nodes.inputs[name], nodes.op(name)
        if _CHANGES.fullmatch(op):
            yield from map(nodes.target, inputs[:1])
        for function in nodes.called(name):
            places = self._of_function(function)
            first = 0 if op == function else _FIRST.get(op)
            if first is None and places:
                yield from map(nodes.target, inputs)  # each may become any argument
            elif first is not None:
                yield from (nodes.target(inputs[first + i]) for i in places if first + i < len(inputs))

    def _of_function(self, name: str) -> frozenset[int]:
        if name not in self._places:
            self._places[name] = frozenset()  # in case it calls itself
            function = self._nodes.functions[name]
            body = Nodes(function.node_def, self._nodes.functions)
            changed = {variable for node in body.by_name for variable in self.of(body, node)}
            arguments = [str(argument.name) for argument in function.signature.input_arg]
            self._places[name] = frozenset(i for i, argument in enumerate(arguments) if argument in changed)
        return self._places[name]
