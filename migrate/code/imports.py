"""Handle imports of optimizers that current releases no longer have, and of the Keras of a target's optimizers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import libcst as cst

from migrate.code import names
from migrate.code.findings import BY_HAND, REWRITTEN
from migrate.code.program import Reading
from migrate.code.scopes import module_of, within
from migrate.code.tree import Edit, Tree

Line = cst.Import | cst.ImportFrom
_OLD_NAMES = "|".join(sorted(names.STRINGS))
GONE = re.compile(
    r"^(?:tensorflow\.|tf_)?keras\.(?:optimizer_v[12]\b|optimizers\.(?:optimizer_v[12]|learning_rate_schedule|TFOptimizer"
    rf"|schedules\.learning_rate_schedule|\w+_v[12]|{_OLD_NAMES})\b)"
    r"|^tensorflow\.python\.keras\.(?:api\.|optimizers?(?:_v[12])?\b)|^keras\.api\b"
)
"""Places of optimizers and schedules in old releases that Keras 3 and tf_keras do not have, or whose second copy in
TensorFlow does not work with current Keras. Tested with Keras 3.15 and TensorFlow 2.21."""


def is_gone(source: str) -> bool:
    """Whether current releases have nothing under this full name that works with their Keras."""
    return bool(GONE.match(source))


def of_keras(code: str) -> bool:
    """Whether a program imports standalone Keras."""
    return bool(names.IMPORTS_KERAS.search(code))


def to_tf_keras(reading: Reading) -> None:
    """Rewrite `import keras` as `import tf_keras as keras`: a model accepts only optimizers of the same Keras."""
    changed = [(line, new) for line in _lines(reading.tree) if (new := _of_tf_keras(line)) is not line]
    for line, new in changed:
        reading.edits[line] = partial(_constant, new)
    for line, new in changed[:1]:
        message = "every import of Keras: a model accepts only optimizers of the same Keras"
        reading.add(line, REWRITTEN, message, reading.text(new))


def _constant(new: Line, updated: cst.CSTNode) -> Line:
    return new


def _of_tf_keras(line: Line) -> Line:
    if isinstance(line, cst.Import):
        aliases = [_alias_of_tf_keras(alias) for alias in line.names]
        return line.with_changes(names=aliases) if aliases != list(line.names) else line
    if line.relative or line.module is None or names.dotted(line.module).split(".")[0] != "keras":
        return line
    return line.with_changes(module=cst.parse_expression("tf_" + names.dotted(line.module)))


def _alias_of_tf_keras(alias: cst.ImportAlias) -> cst.ImportAlias:
    full = names.dotted(alias.name)
    if full.split(".")[0] != "keras":
        return alias
    if alias.asname is not None:
        return alias.with_changes(name=cst.parse_expression(f"tf_{full}"))
    return alias.with_changes(name=cst.Name("tf_keras"), asname=cst.AsName(cst.Name("keras")))


def without_gone(reading: Reading, module: cst.Module) -> cst.Module:
    """Remove imports that fail now and are unused; those in use are reported."""
    if not any(True for _ in _gone(reading.tree)):
        return module
    tree = Tree(module)
    gone = list(_gone(tree))
    used = used_names(tree)
    edits: dict[cst.CSTNode, Edit] = {}
    for line in {line for line, *_ in gone}:
        idle = [alias for its, alias, _ in gone if its is line and bound_name(alias) not in used]
        if idle:
            edits[line] = partial(_without, idle)
    for _, alias, source in gone:
        if bound_name(alias) in used and reading.has(alias) and not _is_reported(reading, bound_name(alias)):
            reading.add(alias, BY_HAND, f"current releases have no {source}: use its replacement in keras.optimizers")
    return tree.edited(edits) if edits else module


def _is_reported(reading: Reading, name: str) -> bool:
    whole = re.compile(rf"\b{re.escape(name)}\b")
    return any(finding.verdict == BY_HAND and whole.search(finding.old) for _, finding in reading.entries)


def _lines(tree: Tree) -> list[Line]:
    return [*tree.all(cst.Import), *tree.all(cst.ImportFrom)]


def _gone(tree: Tree) -> Iterator[tuple[Line, cst.ImportAlias, str]]:
    """Line, alias and full name of each import that fails now, outside of `try`."""
    for line in _lines(tree):
        if isinstance(line.names, cst.ImportStar) or tree.enclosing(line, cst.Try, cst.TryStar):
            continue
        for alias in line.names:
            full = names.dotted(alias.name)
            source = within(module_of(line), full) if isinstance(line, cst.ImportFrom) else full
            if is_gone(source):
                yield line, alias, source


def _without(idle: list[cst.ImportAlias], updated: cst.CSTNode) -> cst.CSTNode | cst.RemovalSentinel:
    assert isinstance(updated, (cst.Import, cst.ImportFrom))
    assert not isinstance(updated.names, cst.ImportStar)
    kept = [alias for alias in updated.names if alias not in idle]
    if not kept:
        return cst.RemoveFromParent()
    return updated.with_changes(names=[*kept[:-1], kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)])


def used_names(tree: Tree) -> set[str]:
    """Names that a program uses outside of its imports."""
    identifiers: set[str] = set()
    for node in tree.all(cst.Name):
        parent = tree.parent(node)
        is_attribute = isinstance(parent, cst.Attribute) and parent.attr is node
        is_keyword = isinstance(parent, cst.Arg) and parent.keyword is node
        if not (is_attribute or is_keyword or _in_import(tree, node)):
            identifiers.add(node.value)
    return identifiers


def _in_import(tree: Tree, node: cst.CSTNode) -> bool:
    parent = tree.parent(node)
    while isinstance(parent, cst.Attribute):
        node, parent = parent, tree.parent(parent)
    if isinstance(parent, cst.AsName):
        return isinstance(tree.parent(parent), cst.ImportAlias)
    return isinstance(parent, (cst.ImportAlias, cst.ImportFrom))


def bound_name(alias: cst.ImportAlias) -> str:
    return names.dotted(alias.asname.name) if alias.asname else names.dotted(alias.name).split(".")[0]
