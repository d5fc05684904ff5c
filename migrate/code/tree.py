"""A parsed program as a list of nodes with parents, places and edits. LibCST's own visitors and metadata do the same
ten times slower, because they visit every space and comma."""

from __future__ import annotations

import dataclasses
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from typing import Any, TypeVar

import libcst as cst
from libcst._nodes.internal import CodegenState

Node = TypeVar("Node", bound=cst.CSTNode)
Edit = Callable[[cst.CSTNode], "cst.CSTNode | cst.RemovalSentinel"]
LAYOUT = {"lpar", "rpar", "comma", "leading_lines", "header", "footer", "lines_after_decorators"} | {
    "equal",
    "semicolon",
    "colon",
    "dot",
    "trailing_whitespace",
}
"""Fields without names or expressions, in addition to those called whitespace."""


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    names = (f.name for f in dataclasses.fields(kind))
    return tuple(n for n in names if n not in LAYOUT and not n.startswith("whitespace"))


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The parts of a node except layout, in the order of its fields."""
    for name in _fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (part for part in value if isinstance(part, cst.CSTNode))


def walk(root: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and all nodes below it, without layout; each before its parts."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack += reversed(list(children(node)))


class Tree:
    """A module, read once."""

    def __init__(self, module: cst.Module):
        self.module = module
        self._parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self._by_type: dict[type, list[Any]] = {}
        self.nodes = list(walk(module))
        for node in self.nodes:
            self._by_type.setdefault(type(node), []).append(node)
            for part in children(node):
                self._parents[part] = node

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self._parents.get(node)

    def enclosing(self, node: cst.CSTNode, *kinds: type[cst.CSTNode]) -> cst.CSTNode | None:
        """The innermost node of these types that a node is in."""
        at = self.parent(node)
        while at is not None and not isinstance(at, kinds):
            at = self.parent(at)
        return at

    def all(self, kind: type[Node]) -> list[Node]:
        """Every node of exactly this type, in order."""
        return self._by_type.get(kind, [])

    def text(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node)

    def places(self, nodes: set[cst.CSTNode]) -> dict[cst.CSTNode, tuple[int, int]]:
        """Line and column, both from 1, where these nodes start."""
        state = _Recorder(self.module.default_indent, self.module.default_newline, nodes)
        self.module._codegen(state)
        starts = [0, *accumulate(map(len, state.tokens))]
        lines = [0, *(end.end() for end in re.finditer(r"\r\n?|\n", "".join(state.tokens)))]
        positions = {}
        for node, index in state.first.items():
            line = bisect_right(lines, starts[index])
            positions[node] = line, starts[index] - lines[line - 1] + 1
        return positions

    def edited(self, edits: Mapping[cst.CSTNode, Edit]) -> cst.Module:
        """Replace each node in `edits` by the result of its function, inner nodes first."""
        touched: set[cst.CSTNode] = set()
        for node in edits:
            at: cst.CSTNode | None = node
            while at is not None and at not in touched:
                touched.add(at)
                at = self._parents.get(at)
        return cst.ensure_type(_rebuilt(self.module, edits, touched), cst.Module)


class _Recorder(CodegenState):
    def __init__(self, indent: str, newline: str, nodes: set[cst.CSTNode]):
        super().__init__(indent, newline)
        self._recorded_nodes = nodes
        self.first: dict[cst.CSTNode, int] = {}

    def before_codegen(self, node: cst.CSTNode) -> None:
        if node in self._recorded_nodes:
            self.first[node] = len(self.tokens)

    @contextmanager
    def record_syntactic_position(self, node: cst.CSTNode, **ends: Any) -> Iterator[None]:
        if node in self._recorded_nodes:
            self.first[node] = len(self.tokens)  # after its opening brackets
        yield


def _rebuilt(
    node: cst.CSTNode, edits: Mapping[cst.CSTNode, Edit], touched: set[cst.CSTNode]
) -> cst.CSTNode | cst.RemovalSentinel:
    if node not in touched:
        return node
    changed: dict[str, Any] = {}
    for name in _fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode) and value in touched:
            changed[name] = _rebuilt(value, edits, touched)
        elif isinstance(value, (list, tuple)) and any(part in touched for part in value):
            changed[name], comments = _parts(value, edits, touched)
            if comments and isinstance(node, (cst.Module, cst.IndentedBlock)):
                changed["footer"] = [*comments, *node.footer]
    new = node.with_changes(**changed) if changed else node
    edit = edits.get(node)
    return edit(new) if edit is not None else new


def _parts(
    parts: Sequence[cst.CSTNode], edits: Mapping[cst.CSTNode, Edit], touched: set[cst.CSTNode]
) -> tuple[list[cst.CSTNode], list[cst.EmptyLine]]:
    """Rebuild the parts of a node. Comments above a removed line move to the next line; also return those left."""
    rebuilt: list[cst.CSTNode] = []
    comments: list[cst.EmptyLine] = []
    for part in parts:
        kept = _without_empty_line(part, _rebuilt(part, edits, touched))
        if not kept and any(line.comment for line in getattr(part, "leading_lines", ())):
            comments += cst.ensure_type(part, cst.SimpleStatementLine).leading_lines
        elif kept and comments:
            kept[0] = kept[0].with_changes(leading_lines=[*comments, *getattr(kept[0], "leading_lines", ())])
            comments = []
        rebuilt += kept
    return rebuilt, comments


def _without_empty_line(old: cst.CSTNode, new: cst.CSTNode | cst.RemovalSentinel) -> list[cst.CSTNode]:
    if isinstance(new, cst.RemovalSentinel):
        return []
    empty = isinstance(new, cst.SimpleStatementLine) and not new.body and new is not old
    return [] if empty else [new]
