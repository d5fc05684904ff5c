"""Find where unknown code sets a program's learning rate: callbacks, and functions of other packages."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Iterator

import libcst as cst

from migrate.code.changes.flow import PASSES, Flow, called, is_foreign, last, text_of
from migrate.code.changes.imported_files import ImportedFiles
from migrate.code.program import Reading
from migrate.code.tree import children

SCHEDULERS = re.compile(r"^(?:LearningRateScheduler|ReduceLROnPlateau|LearningRate(?:Warmup|Schedule)Callback)$")
SETS_RATE = re.compile(r"(?:^|_|[a-z])(?:LR|lr)(?:$|_|[A-Z])|learning_?rate|schedul|cycl(?:e|ic)|anneal|warm_?up", re.I)
"""Functions and callbacks of other packages that may set the learning rate, by name."""
WATCHES = re.compile(
    r"wandb|tqdm|neptune|comet|mlflow|tensorboard|plot|log|checkpoint|stopp|history|progress|eval", re.I
)
"""Packages whose callbacks do not, by name."""


def schedulers(reading: Reading, where: Flow, imported: ImportedFiles) -> Iterator[cst.CSTNode]:
    """Yield what sets the rate, or may."""
    for node in (*reading.tree.all(cst.Name), *reading.tree.all(cst.Attribute)):
        class_names = {name.rpartition(".")[2] for name in reading.names.of(node)} or {last(node)}
        if any(map(SCHEDULERS.match, class_names)) and not isinstance(
            reading.parent(node), (cst.ImportAlias, cst.AsName)
        ):
            yield node
    yield from (text for text in reading.tree.all(cst.SimpleString) if SCHEDULERS.match(text_of(text)))
    for call in reading.tree.all(cst.Call):
        if (
            SETS_RATE.search(called(reading, call))
            and is_elsewhere(reading, call)
            and not _is_of_standard_library(reading, call.func)
            and not imported.find(reading, call.func)
        ):
            yield call
        if last(call.func) in ("fit", "fit_generator"):
            yield from (
                callback
                for a in call.args[5:6]
                if not a.keyword
                for callback in _foreign_callbacks(reading, a.value, where, imported, set())
            )
    for argument in reading.tree.all(cst.Arg):
        if argument.keyword is not None and argument.keyword.value == "callbacks":
            yield from _foreign_callbacks(reading, argument.value, where, imported, set())
    for element in reading.tree.all(cst.DictElement):
        if text_of(element.key) == "callbacks":
            yield from _foreign_callbacks(reading, element.value, where, imported, set())


def _foreign_callbacks(
    reading: Reading, node: cst.CSTNode, where: Flow, imported: ImportedFiles, seen: set[str]
) -> Iterator[cst.CSTNode]:
    name = last(node)
    definition = imported.find(reading, node) if is_foreign(reading, node) else None
    if definition and definition[1] not in seen:
        seen.add(definition[1])
        if any(
            True
            for at in _origins(*definition)
            for _ in _foreign_callbacks(definition[0].reading, at, definition[0], imported, seen)
        ):
            yield node
        return
    sources: list[cst.CSTNode] = []
    if isinstance(node, cst.Call):
        sources = [node.func, *([a.value for a in node.args] if last(node.func) in PASSES else [])]
    elif is_foreign(reading, node):
        if not definition and not _only_watches(reading, node):
            yield node
    elif name and name not in seen:
        seen.add(name)
        sources = _origins(where, name)
    elif not name:
        sources = list(children(node))
    for source in sources:
        yield from _foreign_callbacks(reading, source, where, imported, seen)


def _origins(where: Flow, name: str) -> list[cst.CSTNode]:
    classes = [cls for cls in where.functions.get(name, ()) if isinstance(cls, cst.ClassDef)]
    return [*where.values(name), *where.returned(name), *(base.value for cls in classes for base in cls.bases)]


def _only_watches(reading: Reading, node: cst.CSTNode) -> bool:
    packages = [source.lstrip(".").partition(".")[0] for source in reading.names.sources(node)]
    return any(map(WATCHES.search, packages)) or _is_of_standard_library(reading, node)


def _is_of_standard_library(reading: Reading, node: cst.CSTNode) -> bool:
    return all(name.partition(".")[0] in sys.stdlib_module_names for name in reading.names.sources(node) or ("",))


def is_elsewhere(reading: Reading, call: cst.Call) -> bool:
    """Whether the code of a function is unknown, and it is no framework's."""
    if not isinstance(call.func, (cst.Name, cst.Attribute)):
        return False
    unbound = isinstance(call.func, cst.Name) and not reading.names.bindings(call.func)
    return is_foreign(reading, call.func) or (unbound and not hasattr(builtins, last(call.func)))
