"""Find changes of the optimizers that a program makes: hyperparameters, methods, wrappers around them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from migrate.code import names
from migrate.code.changes import gradients, schedulers, variables
from migrate.code.changes.flow import ASSIGNS, ASSIGNS_FIRST, Flow, called, last, text_of
from migrate.code.changes.imported_files import ImportedFiles
from migrate.code.program import Reading
from migrate.code.releases import ReleaseHint

RATE, GRADIENTS, FED, DEFAULT_EPSILON = "learning_rate", "gradients", "fed gradients", "epsilon of the backend"
OWN_KEYS = {"lr", "learning_rate", "clipnorm", "clipvalue", "global_clipnorm"}
"""Attributes that identify a parameter or a list item as an optimizer, unless its name contradicts it."""
SETS = ("setattr", "delattr", "__setattr__", "__delattr__", "_set_hyper")
ASKS = ("getattr", "hasattr", "isinstance")
WRAPS = re.compile(r"Optimizer$|^(?:Lookahead|SWA|MovingAverage|enable_mixed_precision_graph_rewrite)$|[Aa]ccumulat")
SAME_STEPS = {"DistributedOptimizer": {"optimizer", "name", "device_dense", "device_sparse", "compression"}}
"""Wrappers that do not change the optimizer's step: they average gradients before it."""
PATCHED = re.compile(r"^(?:keras|tensorflow|tf_keras)\..*(?:optimizer|gradient)", re.IGNORECASE)
"""Functions and methods of a framework's step that a program may replace."""
ALL_ATTRIBUTES = ("__dict__", "_hyper")
"""Dicts of an optimizer's attributes and hyperparameters."""


@dataclass(frozen=True)
class Change:
    """A change. `key`: the single config value that it sets, empty for other changes."""

    node: cst.CSTNode
    key: str = ""


@dataclass(frozen=True)
class Place:
    """A change with its line number and the line's text."""

    key: str
    where: str
    shown: str


def places(reading: Reading, where: Flow, release_hint: ReleaseHint | None) -> Iterator[Place]:
    """Yield all changes by a program, and by its own imported files, after its optimizers are made."""
    others = ImportedFiles(reading, release_hint)
    for flow in (where, *others.flows.values()):
        for change in changes(flow.reading, flow, others):
            yield Place(change.key, flow.reading.where(change.node), shown(flow.reading, change.node))
    yield from (Place("", "", reason) for reason in others.unread)


def shown(reading: Reading, node: cst.CSTNode) -> str:
    """The place and the text of a change."""
    return f"{reading.where(node)} has {' '.join(reading.text(node).split())[:80]}"


def changes(reading: Reading, where: Flow, imported: ImportedFiles) -> Iterator[Change]:
    """Yield the changes in one file."""
    for node, target in _assignment_targets(reading):
        if isinstance(target, cst.Attribute) and _is_part(target, where):
            yield Change(node, _key(target))
        elif any(map(PATCHED.search, reading.names.of(target))) or (
            isinstance(target, cst.Subscript) and _is_dict_of_state(target.value, where)
        ):
            yield Change(node)
    for call in reading.tree.all(cst.Call):
        yield from _called(reading, call, where)
    for node in (*reading.tree.all(cst.Name), *reading.tree.all(cst.Attribute)):
        if any(name.endswith("backend.set_value") for name in reading.names.of(node)) and _is_passed_on(reading, node):
            yield Change(node)
    yield from (Change(node, RATE) for node in schedulers.schedulers(reading, where, imported))
    for node in gradients.altered(reading, where):
        yield Change(node, FED if gradients.are_fed(reading, node) else GRADIENTS)
    yield from (Change(node) for node in variables.moved(reading, where))


def _assignment_targets(reading: Reading) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    tree = reading.tree
    for assign in tree.all(cst.Assign):
        for assign_target in assign.targets:
            yield from ((assign, part) for part in _parts(assign_target.target))
    statements: list[cst.AugAssign | cst.AnnAssign | cst.Del] = [*tree.all(cst.AugAssign), *tree.all(cst.AnnAssign)]
    for statement in (*statements, *tree.all(cst.Del)):
        yield from ((statement, part) for part in _parts(statement.target))
    loops: list[cst.For | cst.CompFor] = [*tree.all(cst.For), *tree.all(cst.CompFor)]
    for loop in loops:
        yield from ((loop.iter, part) for part in _parts(loop.target))
    for name in tree.all(cst.AsName):
        yield from ((name, part) for part in _parts(name.name))


def _parts(target: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _parts(element.value)
    else:
        yield target


def _called(reading: Reading, call: cst.Call, where: Flow) -> Iterator[Change]:
    name, values = called(reading, call), [argument.value for argument in call.args]
    on = call.func.value if isinstance(call.func, cst.Attribute) else None
    named = len(values) > 1 and text_of(values[1]) in OWN_KEYS
    if name == "set_epsilon":
        yield Change(call, DEFAULT_EPSILON)
    elif on is not None and (
        (ASSIGNS.match(name) and _is_of_optimizer(on, where)) or (name == "update" and _is_dict_of_state(on, where))
    ):
        yield Change(call, _key(on))
    elif ASSIGNS_FIRST.match(name) and values and _has_optimizer(values[0], where):
        yield Change(call, _key(values[0]))
    elif (
        name == "__init__" and on is not None and (where.carries(on) or any(map(names.old_class, reading.names.of(on))))
    ):
        yield Change(call)
    elif name in SETS or (named and name not in ASKS):
        owners = [*values[:1], *([on] if on is not None and name in SETS else [])]
        if any(map(where.carries, owners)) or (named and not where.is_known(values[0])):
            yield Change(call)
    elif _wraps(reading, call, name) and ("ccumulat" in name or any(_has_optimizer(value, where) for value in values)):
        yield Change(call)


def _is_of_optimizer(node: cst.BaseExpression, where: Flow) -> bool:
    return where.carries(node) or (isinstance(node, cst.Attribute) and _is_part(node, where))


def _is_part(node: cst.Attribute, where: Flow) -> bool:
    return where.carries(node.value) or (node.attr.value in OWN_KEYS and not where.is_known(node.value))


def _has_optimizer(node: cst.CSTNode, where: Flow) -> bool:
    if isinstance(node, (cst.List, cst.Tuple)):
        return any(_has_optimizer(element.value, where) for element in node.elements)
    return isinstance(node, cst.BaseExpression) and _is_of_optimizer(node, where)


def _is_dict_of_state(node: cst.CSTNode, where: Flow) -> bool:
    if isinstance(node, cst.Call):
        return last(node.func) == "vars" and any(map(where.carries, node.args))
    return isinstance(node, cst.Attribute) and node.attr.value in ALL_ATTRIBUTES and where.carries(node.value)


def _is_passed_on(reading: Reading, node: cst.CSTNode) -> bool:
    parent = reading.parent(node)
    return not isinstance(parent, (cst.ImportAlias, cst.AsName, cst.Attribute)) and not (
        isinstance(parent, cst.Call) and parent.func is node
    )


def _wraps(reading: Reading, call: cst.Call, name: str) -> bool:
    same_steps = name in SAME_STEPS and {a.keyword.value for a in call.args if a.keyword} <= SAME_STEPS[name]
    return bool(WRAPS.search(name)) and not same_steps and not any(map(names.old_class, reading.names.of(call.func)))


def _key(node: cst.CSTNode) -> str:
    key = last(node).lstrip("_")
    return RATE if key == "lr" else key
