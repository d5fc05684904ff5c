"""What a program does to gradients on their way into `apply_gradients`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from migrate.code import names
from migrate.code.changes.flow import Flow, called, is_foreign, last
from migrate.code.program import Reading

CLIPS = re.compile(r"^clip_by_(?:value|(?:\w+_)?norm)$|^clip_gradients_by_norm$")
OF_GRADIENTS = re.compile(r"\bg(?:rad\w*)?\b")
MAKES = ("gradient", "gradients")
HOLDS = ("zip", "list", "tuple", "filter")


def altered(reading: Reading, where: Flow) -> Iterator[cst.CSTNode]:
    """Where gradients are clipped, or anything else than handed on."""
    for call in reading.tree.all(cst.Call):
        name = called(reading, call)
        if CLIPS.match(name) and (name != "clip_by_value" or OF_GRADIENTS.search(reading.text(call))):
            yield call
    taken: list[cst.CSTNode] = [
        call.args[0].value for call in reading.tree.all(cst.Call) if last(call.func) == "apply_gradients" and call.args
    ]
    seen: set[str] = set()
    while taken:
        node = taken.pop()
        if isinstance(node, cst.Name) and node.value not in seen:
            seen.add(node.value)
            taken += where.values(node.value)
        elif isinstance(node, (cst.List, cst.Tuple)):
            taken += [_gradient(element.value) for element in node.elements]
        elif isinstance(node, cst.IfExp):
            taken += [node.body, node.orelse]
        elif isinstance(node, (cst.ListComp, cst.GeneratorExp)) and isinstance(_gradient(node.elt), cst.Name):
            taken.append(node.for_in.iter)
        elif isinstance(node, cst.Call) and last(node.func) in HOLDS:
            taken += [argument.value for argument in node.args[:1]]
        elif isinstance(node, cst.Call):
            function = f"{last(node.func)}()"
            taken += where.returned(last(node.func)) if function not in seen else []
            seen.add(function)
            if _changes(reading, node):
                yield node
        elif not isinstance(node, (cst.Name, cst.Attribute, cst.Subscript)):
            yield node
    yield from _added(reading, seen)


def _gradient(node: cst.BaseExpression) -> cst.BaseExpression:
    """The first of a pair of gradient and variable."""
    return node.elements[0].value if isinstance(node, cst.Tuple) and node.elements else node


def _changes(reading: Reading, call: cst.Call) -> bool:
    known = last(call.func) in MAKES or not reading.names.of(call.func)
    framework = any(map(names.FRAMEWORK.match, reading.names.of(call.func)))
    return last(call.func) == "map" or is_foreign(reading, call.func) or (framework and not known)


def _added(reading: Reading, gradients: set[str]) -> Iterator[cst.CSTNode]:
    """Statements that change gradients in place."""
    for changed in reading.tree.all(cst.AugAssign):
        target = changed.target.value if isinstance(changed.target, cst.Subscript) else changed.target
        if last(target) in gradients:
            yield changed
    for assign in reading.tree.all(cst.Assign):
        for each in assign.targets:
            if isinstance(each.target, cst.Subscript) and last(each.target.value) in gradients:
                yield assign
