"""Produce the new source: apply the edits, add imports for them, and remove unused ones."""

from __future__ import annotations

import libcst as cst

from migrate.code import imports, names, targets
from migrate.code.places import (
    attributes,
    callbacks,
    classes,
    constructors,
    elsewhere,
    frozen,
    hypers,
    schedules,
    steps,
    strings,
    weights,
    wrappers,
)
from migrate.code.program import Reading
from migrate.code.tree import Tree


def look(reading: Reading) -> None:
    """Show every node to the kinds of places that it may be."""
    if reading.target == targets.TF_KERAS:
        imports.to_tf_keras(reading)
    for node in reading.tree.nodes:
        if isinstance(node, cst.Call):
            _look_at_call(reading, node)
        elif isinstance(node, cst.Attribute):
            attributes.look_at_attribute(reading, node)
            weights.look_at_weights(reading, node)
            hypers.look_at_attribute(reading, node)
            classes.look(reading, node)
            schedules.look_at_class(reading, node)
            elsewhere.look_at_module(reading, node)
        elif isinstance(node, cst.Subscript):
            callbacks.look_at_subscript(reading, node)
        elif isinstance(node, cst.Name):
            classes.look(reading, node)
            schedules.look_at_class(reading, node)
            elsewhere.look_at_module(reading, node)
    for call in reading.tree.all(cst.Call):
        if wrappers.is_wrapper(reading, call.func):
            wrappers.look(reading, call)  # after the result for the inner optimizer is known
    frozen.look(reading)


def _look_at_call(reading: Reading, node: cst.Call) -> None:
    if attributes.look_at_call(reading, node):
        return
    constructors.look(reading, node)
    strings.look_at_compile(reading, node)
    strings.look_at_lookup(reading, node)
    weights.look(reading, node)
    steps.look(reading, node)
    callbacks.look_at_call(reading, node)
    hypers.look_at_call(reading, node)
    schedules.look(reading, node)
    elsewhere.look_at_call(reading, node)


def rewritten(reading: Reading) -> str:
    """The program's Python with all edits."""
    module = reading.tree.edited(reading.edits) if reading.edits else reading.module
    module = _with_imports(module, sorted(reading.imports))  # first, so that they replace removed ones
    module = imports.without_gone(reading, _without_idle(module, reading.replaced))
    return reading.program.code if module is reading.module else module.code


def _with_imports(module: cst.Module, lines: list[str]) -> cst.Module:
    present = {
        module.code_for_node(small).strip()
        for line in module.body
        if isinstance(line, cst.SimpleStatementLine)
        for small in line.body
        if isinstance(small, cst.Import)
    }
    present |= {name for line in present for name in _split(line)}
    present |= {f"import {name}" for name in _bound_from(module)}
    new = [line for line in lines if line not in present]
    if not new:
        return module
    at, is_after_import = 0, False
    for index, statement in enumerate(module.body):
        small = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
        is_docstring = index == 0 and len(small) == 1 and isinstance(small[0], cst.Expr)
        if is_docstring or (small and all(isinstance(s, (cst.Import, cst.ImportFrom)) for s in small)):
            at, is_after_import = index + 1, True
        elif not (isinstance(statement, cst.SimpleStatementLine) and _is_pass(statement)):
            break
        elif not is_after_import:
            at = index + 1  # IPython's own first lines, such as %%time, stay first
    statements = [cst.parse_statement(line, config=module.config_for_parsing) for line in new]
    return module.with_changes(body=[*module.body[:at], *statements, *module.body[at:]])


def _is_pass(statement: cst.SimpleStatementLine) -> bool:
    return len(statement.body) == 1 and isinstance(statement.body[0], cst.Pass)


def _bound_from(module: cst.Module) -> set[str]:
    """Names bound by the module's own `from ... import` lines, such as `keras` of `from tensorflow import keras`."""
    small = (s for line in module.body if isinstance(line, cst.SimpleStatementLine) for s in line.body)
    froms = (s.names for s in small if isinstance(s, cst.ImportFrom))
    return {imports.bound_name(a) for aliases in froms if not isinstance(aliases, cst.ImportStar) for a in aliases}


def _split(line: str) -> list[str]:
    return [f"import {part.strip()}" for part in line.removeprefix("import ").split(",")]


def _used(tree: Tree) -> set[str]:
    """Names that a program uses outside of its imports, and all strings, which may be names too."""
    texts = (string.evaluated_value for string in tree.all(cst.SimpleString))
    return imports.used_names(tree) | {text for text in texts if isinstance(text, str)}


def _without_unused(updated: cst.CSTNode, idle: set[str]) -> cst.ImportFrom | cst.RemovalSentinel:
    line = cst.ensure_type(updated, cst.ImportFrom)
    if isinstance(line.names, cst.ImportStar) or line.module is None:
        return line
    module = names.one_name(names.dotted(line.module) + ".")
    kept = [
        alias
        for alias in line.names
        if imports.bound_name(alias) not in idle or not _is_class(module, names.dotted(alias.name))
    ]
    if len(kept) == len(line.names):
        return line
    if not kept:
        return cst.RemoveFromParent()
    return line.with_changes(names=[*kept[:-1], kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)])


def _is_class(module: str, name: str) -> bool:
    qualified = names.one_name(f"{module}{name}")
    return bool(names.old_class(qualified) or names.is_foreign(qualified))


def _without_idle(module: cst.Module, replaced: set[str]) -> cst.Module:
    tree = Tree(module)
    idle = replaced - _used(tree)
    if not idle:
        return module
    return tree.edited({line: lambda updated: _without_unused(updated, idle) for line in tree.all(cst.ImportFrom)})
