"""Find the scopes of a program and the bindings of their names: imports, or others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from migrate.code import tree

MODULE, FUNCTION, CLASS, INNER = "module", "function", "class", "inner"
"""INNER: comprehensions and lambdas."""
Path = tuple[str, ...]
Bound = str | None
"""The full name of an imported object, None for other bindings."""
MODULES = re.compile(
    r"^(?:keras|tensorflow|tf_keras|tensorflow_addons)(?:(?:\.\w+)*\.(?:keras|backend|optimizers|schedules|legacy"
    r"|experimental|mixed_precision|callbacks|models|train|compat|v1|v2|contrib|opt))?$"
)
"""Modules of the frameworks: `keras = tf.keras` binds a name as an import does."""
COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)


@dataclass(eq=False)
class Scope:
    """`path` names the outer functions ("f()") and classes; comprehensions and lambdas have that of their place."""

    kind: str
    path: Path = ()
    outer: Scope | None = None
    bound: dict[str, dict[Bound, None]] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)
    """Names that are declared global or nonlocal."""

    def bind(self, name: str, value: Bound = None) -> None:
        self.home(name).bound.setdefault(name, {})[value] = None

    def home(self, name: str) -> Scope:
        """The scope in which a binding here binds a name."""
        home: Scope = self
        while name in home.elsewhere and home.outer is not None:
            home = home.outer
        return home

    def find(self, name: str) -> list[Bound]:
        """All bindings of a name here; may be empty."""
        at: Scope | None = self
        while at is not None:
            if name in at.bound and (at is self or at.kind != CLASS) and name not in at.elsewhere:
                return list(at.bound[name])
            at = at.outer
        return []


@dataclass
class Scopes:
    """`of`: the scope of each node. `stars`: modules whose names are all imported. `names`: all bound names, except a
    top-level module under its own name."""

    of: dict[cst.CSTNode, Scope] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)


def read(module: cst.Module) -> Scopes:
    scopes = Scopes()
    stack: list[tuple[cst.CSTNode, Scope]] = [(module, Scope(MODULE))]
    aliases: dict[cst.CSTNode, tuple[str, str]] = {}
    named: list[tuple[Scope, str, Alias]] = []
    while stack:
        node, scope = stack.pop()
        scopes.of[node] = scope
        if isinstance(node, cst.Assign) and len(node.targets) == 1 and isinstance(node.targets[0].target, cst.Name):
            aliases[node.targets[0]] = node.targets[0].target.value, dotted(node.value)
        if node in aliases and aliases[node][1]:
            name, text = aliases[node]
            scopes.names.add(name)
            named.append((scope, name, Alias(text)))
            scope.bind(name, named[-1][2])
            stack += reversed([(part, scope) for part in tree.children(node)])
            continue
        for name, value in _bindings(node, scopes):
            scope.bind(name, value)
        if isinstance(node, (cst.Global, cst.Nonlocal)):
            scope.elsewhere.update(item.name.value for item in node.names)
        if not isinstance(node, (cst.Import, cst.ImportFrom)):
            stack += reversed(list(_parts_with_scopes(node, scope)))
    for scope, name, alias in named:
        _resolve(scope, name, alias)
    return scopes


class Alias(str):
    """What a name is assigned to, while it is not known whether that is a module."""


def _resolve(scope: Scope, name: str, alias: Alias) -> None:
    """Replace an alias by the modules that it names, or by None."""
    first, _, rest = alias.partition(".")
    bindings = [
        binding for binding in scope.find(first) if not (isinstance(binding, Alias) and binding.startswith(f"{first}."))
    ]
    full = [
        f"{binding}.{rest}" if rest else binding
        for binding in bindings
        if binding is not None and not isinstance(binding, Alias)
    ]
    is_module = bool(bindings) and len(full) == len(bindings) and all(map(MODULES.match, full))
    bound = scope.home(name).bound[name]
    bound.pop(alias, None)
    bound.update(dict.fromkeys(full if is_module else [None]))


def _parts_with_scopes(node: cst.CSTNode, scope: Scope) -> Iterator[tuple[cst.CSTNode, Scope]]:
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        kind, suffix = (CLASS, "") if isinstance(node, cst.ClassDef) else (FUNCTION, "()")
        inside = Scope(kind, (*scope.path, node.name.value + suffix), scope)
        yield from (
            (part, inside if part is node.body or isinstance(part, cst.Parameters) else scope)
            for part in tree.children(node)
        )
    elif isinstance(node, cst.Param) and scope.outer is not None:
        yield from ((part, scope if part is node.name else scope.outer) for part in tree.children(node))
    elif isinstance(node, (cst.Lambda, *COMPREHENSIONS)):
        inside = Scope(INNER, scope.path, scope)
        yield from ((part, inside) for part in tree.children(node))
    else:
        yield from ((part, scope) for part in tree.children(node))


def _bindings(node: cst.CSTNode, scopes: Scopes) -> Iterator[tuple[str, Bound]]:
    if isinstance(node, (cst.Import, cst.ImportFrom)):
        yield from _imported(node, scopes)
        return
    names: Iterator[str] = iter(())
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        names = iter([node.name.value])
    elif isinstance(node, (cst.Param, cst.AsName)):
        names = _plain(node.name)
    elif isinstance(node, (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.CompFor, cst.NamedExpr)):
        names = _plain(node.target)
    elif isinstance(node, (cst.MatchAs, cst.MatchStar)) and node.name is not None:
        names = iter([node.name.value])
    for name in names:
        scopes.names.add(name)
        yield name, None


def _plain(target: cst.CSTNode | None) -> Iterator[str]:
    return (name for name in targets(target) if "." not in name)


def targets(target: cst.CSTNode | None) -> Iterator[str]:
    """The dotted names that an assignment to this target binds."""
    if isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from targets(element.value)
    elif isinstance(target, (cst.Name, cst.Attribute)) and dotted(target):
        yield dotted(target)


def _imported(node: cst.Import | cst.ImportFrom, scopes: Scopes) -> Iterator[tuple[str, Bound]]:
    module = module_of(node) if isinstance(node, cst.ImportFrom) else ""
    if isinstance(node.names, cst.ImportStar):
        scopes.stars.append(module)
        return
    for alias in node.names:
        full = dotted(alias.name)
        short = dotted(alias.asname.name) if alias.asname else full.split(".")[0]
        if short != full.split(".")[0] or module:
            scopes.names.add(short)
        yield short, within(module, full) if alias.asname or module else short


def module_of(node: cst.ImportFrom) -> str:
    """`a.b`, `.a` or `.` of `from ... import`."""
    return "." * len(node.relative) + (dotted(node.module) if node.module is not None else "")


def within(module: str, name: str) -> str:
    """The full name of a module's member."""
    return f"{module}{'.' if module.strip('.') else ''}{name}"


def dotted(node: cst.CSTNode) -> str:
    """`a.b.c` as text, empty for other expressions."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr.value}" if base else ""
    return ""
