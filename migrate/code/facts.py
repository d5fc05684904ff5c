"""Classify the expressions of a program: optimizers, models, strings; and the uses of optimizers."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from migrate.code import names
from migrate.code.meanings import OPAQUE, Value
from migrate.code.scopes import Scopes
from migrate.code.tree import Tree

OPTIMIZER, MODEL, STRING, CLASS = "optimizer", "model", "string", "class"
MAX_DEPTH = 8
LARGEST = sys.float_info.max
Scope = tuple[str, ...]


def literal(node: cst.BaseExpression, module: cst.Module) -> Value:
    """The text of an expression, and its value if it consists of literals only."""
    text = module.code_for_node(node)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return Value(text, _evaluated(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # also if it is too deep for Python's own parser
        return Value(text)


def _evaluated(tree: ast.expr) -> Any:
    value = _computed(tree)
    if isinstance(value, complex) or (isinstance(value, (int, float)) and not abs(value) <= LARGEST):
        return OPAQUE
    return value


def _computed(tree: ast.expr) -> Any:
    if isinstance(tree, ast.Constant):
        return tree.value
    if isinstance(tree, (ast.List, ast.Tuple)):
        items = [_evaluated(item) for item in tree.elts]
        return OPAQUE if OPAQUE in items else items
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        value = _evaluated(tree.operand)
        return -value if isinstance(value, (int, float)) else OPAQUE
    if isinstance(tree, ast.BinOp):
        left, right = _evaluated(tree.left), _evaluated(tree.right)
        if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
            return OPAQUE
        try:
            if isinstance(tree.op, ast.Mult):
                return left * right
            if isinstance(tree.op, ast.Div):
                return left / right
            if isinstance(tree.op, ast.Pow) and abs(right) < 100:
                return left**right
        except (ArithmeticError, ValueError):
            return OPAQUE
    return OPAQUE


@dataclass
class Facts:
    """Bindings by scope: names, and attributes of `self` by class."""

    names: names.Names
    module: cst.Module
    scopes: dict[cst.CSTNode, Scope]
    values: dict[tuple[Scope, str], list[cst.BaseExpression | None]] = field(default_factory=dict)
    compiled: set[tuple[Scope, str]] = field(default_factory=set)
    callbacks: set[Scope] = field(default_factory=set)
    rules: set[Scope] = field(default_factory=set)
    """Classes of the program that are optimizers."""
    parameters: set[tuple[Scope, str]] = field(default_factory=set)
    _known: dict[tuple[Scope, str, int], frozenset[str | None]] = field(default_factory=dict)

    def kind(self, node: cst.BaseExpression, scope: Scope, depth: int = 0) -> str | None:
        """OPTIMIZER, MODEL, STRING, CLASS, or None if uncertain."""
        if depth > MAX_DEPTH:
            return None
        if isinstance(node, (cst.SimpleString, cst.ConcatenatedString)):
            return STRING
        if isinstance(node, cst.IfExp):
            kinds = {self.kind(branch, scope, depth + 1) for branch in (node.body, node.orelse)}
            return kinds.pop() if len(kinds) == 1 else None
        if isinstance(node, cst.Call):
            return self._kind_of_call(node)
        if isinstance(node, (cst.Name, cst.Attribute)):
            return self._kind_of_name(node, scope, depth)
        return None

    def _kind_of_call(self, node: cst.Call) -> str | None:
        canonical_names = self.names.of(node.func)
        if canonical_names and all(map(makes_optimizer, canonical_names)):
            return OPTIMIZER
        return MODEL if canonical_names and all(map(names.MODELS.match, canonical_names)) else None

    def _kind_of_name(self, node: cst.Name | cst.Attribute, scope: Scope, depth: int) -> str | None:
        canonical_names = self.names.of(node)
        if canonical_names:
            return CLASS if all(names.old_class(n) or names.is_foreign(n) for n in canonical_names) else None
        text = names.dotted(node)
        bound = self.bound(text, scope) if text else None
        if bound is not None:
            if (bound, text) in self.compiled:
                return MODEL
            kinds = self._kinds(bound, text, depth)
            if len(kinds) == 1 and None not in kinds:
                return next(iter(kinds))
            if kinds and kinds != {None}:
                return None
        if text and any((level, text) in self.compiled for level in _levels(scope)):
            return MODEL
        if isinstance(node, cst.Attribute):
            if node.attr.value == "optimizer" and self.kind(node.value, scope, depth + 1) == MODEL:
                return OPTIMIZER
            if text == "self.model" and any(level in self.callbacks for level in _levels(scope)):
                return MODEL
        return None

    def _kinds(self, bound: Scope, text: str, depth: int) -> frozenset[str | None]:
        """The kinds of all values of a name. They are cached, because a name may have thousands."""
        key = (bound, text, depth)
        if key not in self._known:
            values = self.values[bound, text]
            self._known[key] = frozenset(None if v is None else self.kind(v, bound, depth + 1) for v in values)
        return self._known[key]

    def in_rule(self, scope: Scope) -> bool:
        """Whether a place is in an optimizer class, which is rewritten as a whole or not at all."""
        return any(level in self.rules for level in _levels(scope))

    def bound(self, text: str, scope: Scope) -> Scope | None:
        """The innermost scope that binds a name, or an attribute of `self`, to a value."""
        for level in _levels(scope):
            if (level, text) in self.values:
                return level
            if (level, text.split(".")[0]) in self.parameters and not text.startswith("self."):
                return None
        return None

    def only_value(self, node: cst.BaseExpression, scope: Scope) -> cst.BaseExpression | None:
        """The value of a name with only one, else None."""
        text = names.dotted(node)
        bound = self.bound(text, scope) if text else None
        values = self.values.get((bound, text), []) if bound is not None else []
        return values[0] if len(values) == 1 else None


def makes_optimizer(name: str) -> bool:
    """Whether a call of this canonical name creates an optimizer."""
    return bool(names.old_class(name) or names.is_foreign(name) or names.LOOKUPS.match(name)) or bool(
        names.FRAMEWORK.match(name) and names.WRAPPERS.search(name)
    )


def _levels(scope: Scope) -> Iterable[Scope]:
    for length in range(len(scope), -1, -1):
        yield scope[:length]


def collect(tree: Tree, scopes: Scopes, module_names: names.Names) -> Facts:
    """Collect the bindings of a program."""
    facts = Facts(module_names, tree.module, {node: scope.path for node, scope in scopes.of.items()})
    for node in tree.all(cst.Param):
        facts.parameters.add((facts.scopes[node], node.name.value))
    for assign in tree.all(cst.Assign):
        for target in assign.targets:
            _bind(facts, target, target.target, assign.value)
    for annotated in tree.all(cst.AnnAssign):
        if annotated.value is not None:
            _bind(facts, annotated, annotated.target, annotated.value)
    for named in tree.all(cst.NamedExpr):
        _bind(facts, named, named.target, named.value)
    for changed in tree.all(cst.AugAssign):
        _bind(facts, changed, changed.target, None)
    for loop in tree.all(cst.For):
        _bind(facts, loop, loop.target, None)
    for as_name in tree.all(cst.AsName):
        if as_name in facts.scopes and isinstance(as_name.name, cst.Name):
            _bind(facts, as_name, as_name.name, None)
    for cls in tree.all(cst.ClassDef):
        bases = [module_names.of(argument.value) for argument in cls.bases]
        scope = (*facts.scopes[cls], cls.name.value)
        if any(base and all(map(names.CALLBACK.match, base)) for base in bases):
            facts.callbacks.add(scope)
        if any(base and all(makes_optimizer(n) or names.BASES.match(n) for n in base) for base in bases):
            facts.rules.add(scope)
    for call in tree.all(cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "compile" and is_keras_compile(call):
            text = names.dotted(call.func.value)
            if text and not module_names.of(call.func.value):
                facts.compiled.add((_home(facts.scopes[call], text), text))
    return facts


def _home(scope: Scope, text: str) -> Scope:
    if not text.startswith("self."):
        return scope
    classes = [i for i, part in enumerate(scope) if not part.endswith("()")]
    return scope[: classes[-1] + 1] if classes else scope


def _bind(facts: Facts, at: cst.CSTNode, target: cst.BaseExpression, value: cst.BaseExpression | None) -> None:
    if isinstance(target, (cst.Tuple, cst.List)):
        pairs: list[cst.BaseExpression | None] = [None] * len(target.elements)
        if isinstance(value, (cst.Tuple, cst.List)) and len(value.elements) == len(target.elements):
            pairs = [element.value for element in value.elements]
        for element, part in zip(target.elements, pairs, strict=True):
            _bind(facts, at, element.value, part)
        return
    text = names.dotted(target)
    if text and (text.count(".") == 0 or text.startswith("self.")):
        facts.values.setdefault((_home(facts.scopes[at], text), text), []).append(value)


def compiled(node: cst.Call) -> cst.BaseExpression | None:
    """The optimizer argument of a call of `.compile`; None for other calls, or if it is unclear."""
    if not isinstance(node.func, cst.Attribute) or node.func.attr.value != "compile":
        return None
    named = [a.value for a in node.args if a.keyword and a.keyword.value == "optimizer"]
    first = [a.value for a in node.args[:1] if a.keyword is None and not a.star]
    return next(iter(named + first), None)


COMPILE_WORDS = {"loss", "optimizer", "metrics", "loss_weights", "sample_weight_mode"}


def is_keras_compile(node: cst.Call) -> bool:
    """Whether a `.compile` has the arguments of a Keras model's."""
    keywords = {argument.keyword.value for argument in node.args if argument.keyword}
    return bool(keywords & {"loss", "optimizer"}) and keywords <= {
        *COMPILE_WORDS,
        "weighted_metrics",
        "target_tensors",
        "run_eagerly",
        "experimental_run_tf_function",
        "steps_per_execution",
        "jit_compile",
        "class_mode",
        "loss_function",
        "show_accuracy",
        "theano_mode",
        "auto_scale_loss",
    }
