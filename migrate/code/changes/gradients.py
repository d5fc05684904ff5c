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
    taken: list[cst.CSTNode] = list(_taken(reading, where))
    seen: set[str] = set()
    producers = {name for name, value in where.bindings if any(map(_makes, walk(value)))}
    while taken:
        node = taken.pop()
        if isinstance(node, (cst.Name, cst.Attribute)):
            taken += where.values(last(node)) if last(node) not in seen else []
            seen.add(last(node))
        elif isinstance(node, cst.Subscript):
            taken.append(node.value)
        elif isinstance(node, (cst.List, cst.Tuple, cst.Dict)):
            taken += [_gradient_of_pair(element.value) for element in node.elements]
        elif isinstance(node, cst.IfExp):
            taken += [node.body, node.orelse]
        elif isinstance(node, (cst.ListComp, cst.GeneratorExp)) and isinstance(_gradient_of_pair(node.elt), cst.Name):
            taken.append(node.for_in.iter)
        elif isinstance(node, cst.Call) and last(node.func) in HOLDS:
            taken += [argument.value for argument in node.args[:1]] or [node.func]
        elif isinstance(node, cst.Call):
            function = f"{last(node.func)}()"
            taken += where.returned(last(node.func)) if function not in seen else []
            seen.add(function)
            if _changes(reading, node, where, producers):
                yield node
        else:
            yield node
    yield from _changed_in_place(reading, seen)


def are_fed(reading: Reading, node: cst.CSTNode) -> bool:
    """Whether gradients come from outside of the graph, so that no graph shows their changes."""
    return any(isinstance(each, cst.Call) and FEEDS.match(called(reading, each)) for each in walk(node))


def _taken(reading: Reading, where: Flow) -> Iterator[cst.CSTNode]:
    """Yield the gradients that optimizers apply: through their method, an alias of it, or a function that gets the
    method."""
    names_of_it = _other_names(where)
    for call in reading.tree.all(cst.Call):
        if last(call.func) == "apply" and isinstance(call.func, cst.Attribute) and where.carries(call.func.value):
            yield from (argument.value for argument in call.args[:1])
        elif last(call.func) == APPLIES or last(call.func) in names_of_it or _is_method(call.func, names_of_it):
            named = [each.value for each in call.args if each.keyword and last(each.keyword) == "grads_and_vars"]
            yield from named or [each.value for each in call.args if not each.keyword][:1]
        elif any(_is_method(argument.value, names_of_it) for argument in call.args):
            yield from (each.value for each in call.args if not _is_method(each.value, names_of_it))


def _other_names(where: Flow) -> set[str]:
    found: set[str] = set()
    before = -1
    while before < len(found):
        before = len(found)
        found |= {name for name, value in where.bindings if _is_method(value, found)}
    return found


def _is_method(node: cst.CSTNode, names_of_it: set[str]) -> bool:
    """Whether it is `apply_gradients` itself, and not a call of it."""
    if isinstance(node, cst.Call):
        return last(node.func) in ("getattr", "partial") and any(
            text_of(each.value) == APPLIES or _is_method(each.value, names_of_it) for each in node.args
        )
    return last(node) == APPLIES or last(node) in names_of_it


def _gradient_of_pair(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.elements[0].value if isinstance(node, cst.Tuple) and node.elements else node


def _makes(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and last(node.func) in MAKES


def _changes(reading: Reading, call: cst.Call, where: Flow, gradient_names: set[str]) -> bool:
    """Whether a function with unknown code may change gradients; `made`: names of some."""
    if last(call.func) in MAKES:
        return is_foreign(reading, call.func)
    framework = any(map(names.FRAMEWORK.match, reading.names.of(call.func)))
    if framework or last(call.func) == "map" or is_foreign(reading, call.func):
        return True
    if last(call.func) in where.own:
        return False
    given = (each for argument in call.args for each in walk(argument.value))
    return any(_makes(each) or last(each) in gradient_names for each in given)


def _changed_in_place(reading: Reading, gradients: set[str]) -> Iterator[cst.CSTNode]:
    for changed in reading.tree.all(cst.AugAssign):
        target = changed.target.value if isinstance(changed.target, cst.Subscript) else changed.target
        if last(target) in gradients:
            yield changed
    for assign in reading.tree.all(cst.Assign):
        for each in assign.targets:
            target = each.target
            if isinstance(target, cst.Subscript) and last(target.value) in gradients and not _is_key(target):
                yield assign


def _is_key(target: cst.Subscript) -> bool:
    """Whether it is an item of a dict, whose values are tracked."""
    return any(isinstance(e.slice, cst.Index) and text_of(e.slice.value) for e in target.slice)
