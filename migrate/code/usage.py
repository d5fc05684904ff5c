"""Collect a program's uses of each of its names once, so that no look-up reads the file again."""

from __future__ import annotations

from collections import Counter, defaultdict

import libcst as cst

from migrate.code.scopes import dotted, targets
from migrate.code.tree import Tree, walk


class Usage:
    """Calls and returns of a file by dotted name.

    Attributes:
      methods: NAME -> the calls `NAME.method(...)`. arguments: NAME -> the calls with it as an argument.
      calls: NAME -> the calls `NAME(...)` and `NAME[key](...)`. returned: the names that are returned.
      names: how often a plain name is written. plain: the same without attributes and keywords of that name.
    """

    def __init__(self, tree: Tree):
        self.methods: dict[str, list[cst.Call]] = defaultdict(list)
        self.arguments: dict[str, list[cst.Call]] = defaultdict(list)
        self.calls: dict[str, list[cst.Call]] = defaultdict(list)
        for call in tree.all(cst.Call):
            self._add(call)
        self.returned = {dotted(line.value) for line in tree.all(cst.Return) if line.value is not None}
        self.names = Counter(name.value for name in tree.all(cst.Name))
        self.plain = Counter(name.value for name in tree.all(cst.Name) if not _is_attribute_or_keyword(tree, name))

    def _add(self, call: cst.Call) -> None:
        function = call.func.value if isinstance(call.func, cst.Subscript) else call.func
        self.calls[dotted(function)].append(call)
        if isinstance(call.func, cst.Attribute):
            self.methods[dotted(call.func.value)].append(call)
        for name in dict.fromkeys(dotted(argument.value) for argument in call.args):
            self.arguments[name].append(call)

        self._bound_in: dict[cst.CSTNode, set[str]] = {}

    def bound_in(self, block: cst.CSTNode) -> set[str]:
        """The names that a block of the program binds."""
        if block not in self._bound_in:
            bound = (getattr(node, "target", None) for node in walk(block))
            self._bound_in[block] = {name for target in bound for name in targets(target)}
        return self._bound_in[block]

    def compiled_with(self, name: str) -> list[cst.Call]:
        """The calls of `.compile` with a name as an argument."""
        return [call for call in self.arguments.get(name, ()) if is_compile(call)]


def is_compile(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "compile"


def _is_attribute_or_keyword(tree: Tree, node: cst.Name) -> bool:
    parent = tree.parent(node)
    return (isinstance(parent, cst.Attribute) and parent.attr is node) or (
        isinstance(parent, cst.Arg) and parent.keyword is node
    )
