"""Find places where a program may create another optimizer than those that were read, or replace one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from migrate.code import facts, names
from migrate.code.changes import changed
from migrate.code.changes.flow import PASSES, SETTINGS, Flow, is_foreign, last, text_of
from migrate.code.changes.schedulers import is_elsewhere
from migrate.code.program import Reading
from migrate.code.tree import children

ASKS = ("isinstance", "issubclass", "type")
HOLDS = re.compile(r"^(?:opt\w*|\w+_opt(?:imizer)?)$", re.IGNORECASE)
"""Names of optimizers."""
TRAINS = ("fit", "fit_generator", "train_on_batch", "train_on_epoch")
CUSTOM = re.compile(r"custom_?objects?", re.IGNORECASE)
RUNS = ("__class__", "import_module", "exec")
NAMESPACES = ("globals", "locals")


def others(reading: Reading, where: Flow) -> Iterator[cst.CSTNode]:
    """Yield places that may create an optimizer in an unknown way."""
    for call in reading.tree.all(cst.Call):
        canonical_names = reading.names.of(call.func)
        if reading.class_of_string(call):
            continue
        if any(names.LOOKUPS.match(name) or names.is_foreign(name) for name in canonical_names):
            yield call
        elif last(call.func) == "from_config" and isinstance(call.func, cst.Attribute) and not canonical_names:
            if where.carries(call.func.value) or not last(call.func.value):
                yield call
        elif last(call.func) in RUNS or _is_from_config(reading, call) or _is_loaded_and_trained(reading, call):
            yield call
        elif changed.WRAPS.search(last(call.func)) and is_elsewhere(reading, call):
            yield call  # named twice if it gets one
    for optimizer in _optimizers_of_models(reading):
        yield from _unknown_sources(reading, optimizer, where, set())
    yield from _optimizer_names(reading)
    for kind in (cst.Name, cst.Attribute):
        for node in reading.tree.all(kind):
            canonical_names = reading.names.of(node)
            is_class, is_module = any(map(names.old_class, canonical_names)), any(map(names.is_module, canonical_names))
            if (is_class and not _is_recognised(reading, node)) or (is_module and _is_passed_on(reading, node)):
                yield node
    for store in reading.tree.all(cst.Subscript):
        if isinstance(store.value, cst.Call) and last(store.value.func) in NAMESPACES:
            yield store


def _optimizers_of_models(reading: Reading) -> Iterator[cst.BaseExpression]:
    for call in reading.tree.all(cst.Call):
        value = None if reading.names.of(call.func) else facts.compiled(call)
        if value is not None:
            yield value
    for assign in reading.tree.all(cst.Assign):
        if any(
            isinstance(target.target, cst.Attribute) and last(target.target) == "optimizer" for target in assign.targets
        ):
            yield assign.value


def _unknown_sources(reading: Reading, node: cst.CSTNode, where: Flow, seen: set[str]) -> Iterator[cst.CSTNode]:
    name, sources = last(node), list[cst.CSTNode]()
    if isinstance(node, cst.Call):
        canonical_names = reading.names.of(node.func)
        if is_foreign(reading, node.func) or (
            not canonical_names and last(node.func) not in (*where.functions, *where.names, *PASSES)
        ):
            yield node
        name = f"{last(node.func)}()"
        sources = list(where.returned(last(node.func))) if name not in seen else []
        seen.add(name)
    elif is_foreign(reading, node) or _is_part_of_config(node):
        yield node
    elif name and name not in seen:
        seen.add(name)
        sources = list(where.values(name))
    elif not name:
        sources = list(children(node))
    for source in sources:
        yield from _unknown_sources(reading, source, where, seen)


def _is_part_of_config(node: cst.CSTNode) -> bool:
    base = last(node.value) if isinstance(node, cst.Attribute) else ""
    return bool(SETTINGS.search(base)) and base not in ("self", "cls")


def instead(reading: Reading, node: cst.Call, where: Flow) -> Iterator[cst.CSTNode]:
    """Yield what may replace the optimizer of one call: other classes of the name, other values of its name."""
    canonical_names, sources = reading.names.of(node.func), reading.names.sources(node.func)
    of_string = reading.class_of_string(node)
    if not of_string and not (all(map(names.old_class, canonical_names)) and all(map(names.FRAMEWORK.match, sources))):
        yield node
    at = reading.parent(node)
    while isinstance(at, (cst.IfExp, cst.BooleanOperation)):
        sides = (at.body, at.orelse) if isinstance(at, cst.IfExp) else (at.left, at.right)
        yield from (side for side in sides if not _is_made(reading, side, where))
        at = reading.parent(at)
    if isinstance(at, cst.Param):
        yield at  # each caller may pass another
    if isinstance(at, cst.DictElement):
        dict_ = reading.parent(at)
        elements = dict_.elements if isinstance(dict_, cst.Dict) else ()
        yield from (
            e.value for e in elements if isinstance(e.value, cst.Call) and not _is_made(reading, e.value, where)
        )
    if isinstance(at, cst.Assign):
        for target in at.targets:
            text = names.dotted(target.target)
            if text:
                yield from _other_values(reading, text, at, where)


def _other_values(reading: Reading, text: str, assign: cst.Assign, where: Flow) -> Iterator[cst.CSTNode]:
    if len(set(map(bool, reading.names.bindings(assign.targets[0].target)))) > 1:
        yield assign
    for (_, name), values in reading.facts.values.items():
        if name == text:
            yield from (assign if v is None else v for v in values if v is None or not _is_made(reading, v, where))


def _is_made(reading: Reading, node: cst.BaseExpression, where: Flow) -> bool:
    """Whether it is a known call, a known wrapper, another name of an optimizer, or nothing."""
    if isinstance(node, cst.Name) and node.value == "None":
        return True
    if isinstance(node, (cst.IfExp, cst.BooleanOperation)):
        sides = (node.body, node.orelse) if isinstance(node, cst.IfExp) else (node.left, node.right)
        return all(_is_made(reading, side, where) for side in sides)
    if isinstance(node, cst.Call) and reading.names.of(node.func):
        wraps = changed.WRAPS.search(last(node.func)) and any(where.carries(argument) for argument in node.args)
        return (
            bool(wraps) or any(map(names.old_class, reading.names.of(node.func))) or bool(reading.class_of_string(node))
        )
    return where.carries(node)


def _optimizer_names(reading: Reading) -> Iterator[cst.CSTNode]:
    for text in reading.tree.all(cst.SimpleString):
        if text_of(text).lower() in names.STRINGS and _is_for_optimizer(reading, text):
            yield reading.parent(text) or text


def _is_for_optimizer(reading: Reading, text: cst.SimpleString) -> bool:
    parent = reading.parent(text)
    if CUSTOM.search(reading.program.code) and (
        isinstance(parent, cst.Index) or (isinstance(parent, cst.DictElement) and parent.key is text)
    ):
        return True
    if isinstance(parent, cst.Arg):
        call = reading.parent(parent)
        is_read = isinstance(call, cst.Call) and reading.class_of_string(call)
        return parent.keyword is not None and bool(HOLDS.match(parent.keyword.value)) and not is_read
    if isinstance(parent, cst.Assign):
        return any(HOLDS.match(last(target.target)) for target in parent.targets)
    if isinstance(parent, cst.AnnAssign):
        return bool(HOLDS.match(last(parent.target)))
    if isinstance(parent, cst.Param):
        return bool(HOLDS.match(parent.name.value))
    key = text_of(parent.key) if isinstance(parent, cst.DictElement) else ""
    return bool(HOLDS.match(key)) or key == "class_name"


def _is_from_config(reading: Reading, call: cst.Call) -> bool:
    """Whether it runs text, or another program makes an optimizer from a config, as in `build(args.optimizer)`."""
    if isinstance(call.func, cst.Name) and call.func.value == "eval":
        return True
    named = any(HOLDS.match(last(argument.value)) and _is_part_of_config(argument.value) for argument in call.args)
    return named and is_elsewhere(reading, call)


def _is_loaded_and_trained(reading: Reading, call: cst.Call) -> bool:
    if not any(name.endswith(".load_model") for name in reading.names.of(call.func)):
        return False
    if any(a.keyword and a.keyword.value == "compile" and last(a.value) == "False" for a in call.args):
        return False
    parent = reading.parent(call)
    model = names.dotted(parent.targets[0].target) if isinstance(parent, cst.Assign) else ""
    trained_models = [
        c.func.value
        for c in reading.tree.all(cst.Call)
        if isinstance(c.func, cst.Attribute) and c.func.attr.value in TRAINS
    ]
    return any(not model or names.dotted(trained_model) == model for trained_model in trained_models)


def _is_recognised(reading: Reading, node: cst.CSTNode) -> bool:
    parent = reading.parent(node)
    if isinstance(parent, (cst.ImportAlias, cst.AsName, cst.Annotation, cst.Param)):
        return True
    if isinstance(parent, cst.Attribute):
        return parent.attr is node
    if isinstance(parent, cst.Arg):
        call = reading.parent(parent)
        return isinstance(call, cst.Call) and (parent.keyword is node or last(call.func) in ASKS)
    return isinstance(parent, cst.Call) and parent.func is node


def _is_passed_on(reading: Reading, node: cst.CSTNode) -> bool:
    parent = reading.parent(node)
    if isinstance(parent, cst.Attribute):
        return parent.value is node and parent.attr.value == "__dict__"
    return isinstance(parent, (cst.Arg, cst.Assign, cst.Subscript, cst.Element)) and not (
        isinstance(parent, cst.Arg) and parent.keyword is node
    )
