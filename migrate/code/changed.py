"""What a program does to an optimizer besides the call that makes it, so that the call does not tell what was saved."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from migrate.code import names
from migrate.code.program import Reading

RATE = "learning_rate"
SCHEDULERS = re.compile(r"^(?:LearningRateScheduler|ReduceLROnPlateau|LearningRate(?:Warmup|Schedule)Callback)$")
ASSIGNS = re.compile(r"^(?:set_value|assign(?:_add|_sub)?|update(?:_add|_sub)?)$")
SETS = ("setattr", "_set_hyper")
WRAPS = re.compile(r"Optimizer$|^(?:Lookahead|SWA|MovingAverage|enable_mixed_precision_graph_rewrite)$")
SAME_STEPS = {"DistributedOptimizer": {"optimizer", "name", "device_dense", "device_sparse", "compression"}}
"""Wrappers with whose arguments the optimizer steps as it would alone: gradients are averaged before."""
CLIPS = re.compile(r"^clip_by_(?:value|(?:\w+_)?norm)$")
GRADIENTS = re.compile(r"\bg(?:rad\w*)?\b")
OPTIMIZER = re.compile(r"opt", re.IGNORECASE)
ASKS = ("isinstance", "issubclass", "type")


@dataclass(frozen=True)
class Change:
    """`key`: the one value of the config that the program sets itself, empty where it is more than one value."""

    node: cst.CSTNode
    key: str = ""


def changes(reading: Reading, bound_to: str) -> Iterator[Change]:
    """All that is done to an optimizer. `bound_to`: its name, empty where it has none."""
    tree = reading.tree
    stated: list[tuple[cst.CSTNode, cst.BaseExpression]]
    stated = [(assign, target.target) for assign in tree.all(cst.Assign) for target in assign.targets]
    stated += [(each, each.target) for each in tree.all(cst.AugAssign)]
    stated += [(each, each.target) for each in tree.all(cst.AnnAssign)]
    for node, target in stated:
        if isinstance(target, cst.Attribute) and _is_optimizer(reading, target.value, bound_to):
            yield Change(node, _key(target))
    for call in tree.all(cst.Call):
        name = _called(reading, call)
        given = [argument.value for argument in call.args]
        if SCHEDULERS.match(name):
            yield Change(call, RATE)
        elif name == "set_epsilon":
            yield Change(call, "epsilon")
        elif ASSIGNS.match(name):
            held = [call.func.value] if isinstance(call.func, cst.Attribute) and name.startswith("assign") else []
            yield from (Change(call, _key(at)) for at in (*held, *given[:1]) if _is_value(reading, at, bound_to))
        elif name in SETS:
            base = call.func.value if isinstance(call.func, cst.Attribute) else given[0] if given else None
            if base is not None and _is_optimizer(reading, base, bound_to):
                yield Change(call)
        elif WRAPS.search(name) and not _same_steps(call, name):
            if any(_is_optimizer(reading, each, bound_to) for each in given):
                yield Change(call)
        elif CLIPS.match(name) and (name != "clip_by_value" or GRADIENTS.search(reading.text(call))):
            yield Change(call, "gradients")


def others(reading: Reading) -> Iterator[cst.CSTNode]:
    """Places that may make an optimizer in a way that is not read: a config, a subclass, `from_config`."""
    for call in reading.tree.all(cst.Call):
        if any(map(names.LOOKUPS.match, reading.names.of(call.func))) and not reading.class_of_string(call):
            yield call
    for kind in (cst.Name, cst.Attribute):
        for node in reading.tree.all(kind):
            if any(map(names.old_class, reading.names.of(node))) and not _is_read(reading, node):
                yield node


def _is_read(reading: Reading, node: cst.CSTNode) -> bool:
    """Whether a class is called, imported, or only asked about, where it stands."""
    parent = reading.parent(node)
    if isinstance(parent, (cst.ImportAlias, cst.AsName, cst.Annotation, cst.Param)):
        return True
    if isinstance(parent, cst.Attribute):
        return parent.attr is node
    if isinstance(parent, cst.Arg):
        around = reading.parent(parent)
        return isinstance(around, cst.Call) and (parent.keyword is node or _last(around.func) in ASKS)
    return isinstance(parent, cst.Call) and parent.func is node


def _is_value(reading: Reading, node: cst.CSTNode, bound_to: str) -> bool:
    return isinstance(node, cst.Attribute) and _is_optimizer(reading, node.value, bound_to)


def _is_optimizer(reading: Reading, node: cst.BaseExpression, bound_to: str) -> bool:
    """Whether it is one, or has a name that says so and that nothing else in the program was given."""
    text = names.dotted(node)
    if reading.is_optimizer(node) or (text and text == bound_to) or _last(node) == "optimizer":
        return True
    unknown = bool(text) and reading.facts.bound(text, reading.scope(node)) is None
    return unknown and text.count(".") == 0 and not reading.names.of(node) and bool(OPTIMIZER.match(text))


def _same_steps(call: cst.Call, name: str) -> bool:
    return name in SAME_STEPS and {a.keyword.value for a in call.args if a.keyword} <= SAME_STEPS[name]


def _called(reading: Reading, call: cst.Call) -> str:
    """The last part of what is called, as it was where it is imported from."""
    found = reading.names.of(call.func)
    return next(iter(found)).rpartition(".")[2] if len(found) == 1 else _last(call.func)


def _last(node: cst.CSTNode) -> str:
    return node.attr.value if isinstance(node, cst.Attribute) else node.value if isinstance(node, cst.Name) else ""


def _key(node: cst.CSTNode) -> str:
    key = _last(node).lstrip("_")
    return RATE if key == "lr" else key
