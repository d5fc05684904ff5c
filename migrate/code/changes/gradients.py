"""Find what a program does to gradients before `apply_gradients`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from migrate.code import names
from migrate.code.changes.flow import Flow, called, is_foreign, last, text_of
from migrate.code.program import Reading
from migrate.code.tree import walk

CLIPS = re.compile(r"^clip_by_(?:value|(?:\w+_)?norm)$|^clip_gradients_by_norm$")
OF_GRADIENTS = re.compile(r"\bg(?:rad\w*)?\b")
APPLIES = "apply_gradients"
MAKES = {"gradient", "gradients", "compute_gradients", "get_gradients", "get_unscaled_gradients"}
FEEDS = re.compile(r"^placeholder(?:_with_default)?$")
HOLDS = ("zip", "list", "tuple", "filter", "copy", "items", "values", "pop")


def altered(reading: Reading, where: Flow) -> Iterator[cst.CSTNode]:
    """Yield places where gradients are clipped, or used other than by passing them on."""
    for call in reading.tree.all(cst.Call):
        name = called(reading, call)
        if CLIPS.match(name) and (name != "clip_by_value" or OF_GRADIENTS.search(reading.text(call))):
            yield call
    pending: list[cst.CSTNode] = list(_applied_gradients(reading, where))
    seen: set[str] = set()
    producers = {name for name, value in where.bindings if any(map(_makes, walk(value)))}
    while pending:
        node = pending.pop()
        if isinstance(node, (cst.Name, cst.Attribute)):
            pending += where.values(last(node)) if last(node) not in seen else []
            seen.add(last(node))
        elif isinstance(node, cst.Subscript):
            pending.append(node.value)
        elif isinstance(node, (cst.List, cst.Tuple, cst.Dict)):
            pending += [_gradient_of_pair(element.value) for element in node.elements]
        elif isinstance(node, cst.IfExp):
            pending += [node.body, node.orelse]
        elif isinstance(node, (cst.ListComp, cst.GeneratorExp)) and isinstance(_gradient_of_pair(node.elt), cst.Name):
            pending.append(node.for_in.iter)
        elif isinstance(node, cst.Call) and last(node.func) in HOLDS:
            pending += [argument.value for argument in node.args[:1]] or [node.func]
        elif isinstance(node, cst.Call):
            function = f"{last(node.func)}()"
            pending += where.returned(last(node.func)) if function not in seen else []
            seen.add(function)
            if _changes(reading, node, where, producers):
                yield node
        else:
            yield node
    yield from _changed_in_place(reading, seen)


def are_fed(reading: Reading, node: cst.CSTNode) -> bool:
    """Whether gradients come from outside of the graph, so that no graph shows their changes."""
    return any(isinstance(part, cst.Call) and FEEDS.match(called(reading, part)) for part in walk(node))


def _applied_gradients(reading: Reading, where: Flow) -> Iterator[cst.CSTNode]:
    """Yield the gradients that optimizers apply: through their method, an alias of it, or a function that gets the
    method."""
    aliases = _aliases(where)
    for call in reading.tree.all(cst.Call):
        if last(call.func) == "apply" and isinstance(call.func, cst.Attribute) and where.carries(call.func.value):
            yield from (argument.value for argument in call.args[:1])
        elif last(call.func) == APPLIES or last(call.func) in aliases or _is_method(call.func, aliases):
            named = [
                argument.value
                for argument in call.args
                if argument.keyword and last(argument.keyword) == "grads_and_vars"
            ]
            yield from named or [argument.value for argument in call.args if not argument.keyword][:1]
        elif any(_is_method(argument.value, aliases) for argument in call.args):
            yield from (argument.value for argument in call.args if not _is_method(argument.value, aliases))


def _aliases(where: Flow) -> set[str]:
    aliases: set[str] = set()
    before = -1
    while before < len(aliases):
        before = len(aliases)
        aliases |= {name for name, value in where.bindings if _is_method(value, aliases)}
    return aliases


def _is_method(node: cst.CSTNode, aliases: set[str]) -> bool:
    """Whether it is `apply_gradients` itself, and not a call of it."""
    if isinstance(node, cst.Call):
        return last(node.func) in ("getattr", "partial") and any(
            text_of(argument.value) == APPLIES or _is_method(argument.value, aliases) for argument in node.args
        )
    return last(node) == APPLIES or last(node) in aliases


def _gradient_of_pair(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.elements[0].value if isinstance(node, cst.Tuple) and node.elements else node


def _makes(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and last(node.func) in MAKES


def _changes(reading: Reading, call: cst.Call, where: Flow, gradient_names: set[str]) -> bool:
    """Whether a function with unknown code may change gradients; `gradient_names`: of some."""
    if last(call.func) in MAKES:
        return is_foreign(reading, call.func)
    is_framework = any(map(names.FRAMEWORK.match, reading.names.of(call.func)))
    if is_framework or last(call.func) == "map" or is_foreign(reading, call.func):
        return True
    if last(call.func) in where.functions:
        return False
    parts = (part for argument in call.args for part in walk(argument.value))
    return any(_makes(part) or last(part) in gradient_names for part in parts)


def _changed_in_place(reading: Reading, gradient_names: set[str]) -> Iterator[cst.CSTNode]:
    for changed in reading.tree.all(cst.AugAssign):
        target = changed.target.value if isinstance(changed.target, cst.Subscript) else changed.target
        if last(target) in gradient_names:
            yield changed
    for assign in reading.tree.all(cst.Assign):
        for assign_target in assign.targets:
            target = assign_target.target
            if isinstance(target, cst.Subscript) and last(target.value) in gradient_names and not _is_key(target):
                yield assign


def _is_key(target: cst.Subscript) -> bool:
    """Whether it is an item of a dict, whose values are tracked."""
    return any(isinstance(e.slice, cst.Index) and text_of(e.slice.value) for e in target.slice)
