"""Track where the optimizers of a program may be: names, attributes and functions that may refer to one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from migrate.code import facts, names
from migrate.code.program import Reading
from migrate.code.tree import walk

Binding = tuple[str, cst.BaseExpression]
PASSES = {"list", "tuple", "set", "dict", "zip", "enumerate", "iter", "next", "reversed", "sorted", "map", "filter"} | {
    *("getattr", "vars", "copy", "deepcopy", "partial", "field", "chain", "cast")
}
"""Functions whose result is or contains their argument."""
PLAIN = {"variables", "weights", "get_weights", "get_config", "apply_gradients", "minimize", "lower", "numpy"} | {
    *("compute_gradients", "get_gradients", "get_updates", "fit", "fit_generator")
}
"""Methods of an optimizer whose result gives no access to it or its hyperparameters."""
ADDS = ("append", "add", "insert", "extend", "setdefault", "update")
SETTINGS = re.compile(r"arg|cfg|conf|flag|hparam|^hp|option|opts|param|setting|self|cls|namespace", re.IGNORECASE)
"""Names of things that have a learning rate and are no optimizer."""
ASSIGNS = re.compile(r"^(?:assign(?:_add|_sub)?|load)$")
"""Methods that assign to a variable."""
ASSIGNS_FIRST = re.compile(r"^(?:(?:batch_)?set_value|(?:assign|update)(?:_add|_sub)?|moving_average_update)$")
"""Functions that assign to their first argument."""
Function = cst.FunctionDef | cst.ClassDef


class Flow:
    """Bindings by the last part of names, in all scopes at once: too many results rather than too few."""

    def __init__(self, reading: Reading):
        self.reading = reading
        self.functions: dict[str, list[Function]] = {}
        functions: list[Function] = [*reading.tree.all(cst.FunctionDef), *reading.tree.all(cst.ClassDef)]
        for function in functions:
            self.functions.setdefault(function.name.value, []).append(function)
        self.names: set[str] = set()
        self._returned = list(self._returns())
        self.bindings = [*self._assigned(), *self._bindings_by_calls()]
        self._values: dict[str, list[cst.BaseExpression]] = {}
        for name, value in self.bindings:
            self._values.setdefault(name, []).append(value)
        bindings = [*self.bindings, *self._returned]
        before = -1
        while before < len(self.names):
            before = len(self.names)
            self.names |= {name for name, value in bindings if name not in self.names and self.carries(value)}

    def carries(self, node: cst.CSTNode) -> bool:
        """Whether an expression may be or contain an optimizer or one of its hyperparameters."""
        if isinstance(node, cst.Call):
            return self._called(node)
        if isinstance(node, (cst.Name, cst.Attribute)):
            return self._named(node)
        if isinstance(node, (cst.List, cst.Tuple, cst.Set, cst.Dict)):
            return any(self.carries(element.value) for element in node.elements)
        if isinstance(node, (cst.Subscript, cst.NamedExpr, cst.Arg)):
            return self.carries(node.value)
        if isinstance(node, cst.IfExp):
            return self.carries(node.body) or self.carries(node.orelse)
        if isinstance(node, cst.BooleanOperation):
            return self.carries(node.left) or self.carries(node.right)
        if isinstance(node, cst.Lambda):
            return self.carries(node.body)
        if isinstance(node, (cst.ListComp, cst.SetComp, cst.GeneratorExp)):
            return self.carries(node.elt)
        return isinstance(node, cst.DictComp) and self.carries(node.value)

    def holds_slots(self, node: cst.CSTNode) -> bool:
        """Whether an expression refers to an optimizer's variables."""
        return any(
            isinstance(part, cst.Attribute) and last(part) in ("variables", "weights") and self.carries(part.value)
            for part in walk(node)
        )

    def values(self, name: str) -> list[cst.BaseExpression]:
        """All values that are assigned to a name anywhere."""
        return self._values.get(name, [])

    def returned(self, name: str) -> list[cst.BaseExpression]:
        """All values that functions of a name return."""
        return [value for function, value in self._returned if function == name]

    def is_known(self, node: cst.BaseExpression) -> bool:
        """Whether a thing with a learning rate is no optimizer: settings by name, or a result of a known function."""
        if SETTINGS.search(last(node)) or not last(node):
            return True
        makers = [last(value.func) if isinstance(value, cst.Call) else "" for value in self.values(last(node))]
        return bool(makers) and all(maker and maker not in self.functions for maker in makers)

    def _named(self, node: cst.Name | cst.Attribute) -> bool:
        if self.reading.names.of(node):
            return False
        name = last(node)
        if name in self.names or name == "optimizer" or self.reading.is_optimizer(node):
            return True
        if isinstance(node, cst.Attribute):
            return self.carries(node.value)
        unknown = self.reading.facts.bound(name, self.reading.scope(node)) is None
        return unknown and name.lower().startswith("opt")

    def _called(self, node: cst.Call) -> bool:
        canonical_names, name = self.reading.names.of(node.func), last(node.func)
        if any(map(facts.makes_optimizer, canonical_names)) or (not canonical_names and name in self.names):
            return True
        if name == "getattr" and any(text_of(argument.value) == "optimizer" for argument in node.args):
            return True
        if name in PASSES:
            return any(self.carries(argument) for argument in node.args)
        return isinstance(node.func, cst.Attribute) and name not in PLAIN and self.carries(node.func.value)

    def _assigned(self) -> Iterator[Binding]:
        tree = self.reading.tree
        for assign in tree.all(cst.Assign):
            for target in assign.targets:
                yield from _bindings_of_assignment(target.target, assign.value)
        for annotated in tree.all(cst.AnnAssign):
            if annotated.value is not None:
                yield from _bindings_of_assignment(annotated.target, annotated.value)
        for changed in tree.all(cst.AugAssign):
            yield from _bindings_of_assignment(changed.target, changed.value)
        for named in tree.all(cst.NamedExpr):
            yield from _bindings_of_assignment(named.target, named.value)
        loops: list[cst.For | cst.CompFor] = [*tree.all(cst.For), *tree.all(cst.CompFor)]
        for loop in loops:
            yield from _bindings_of_loop(loop.target, loop.iter)
        for item in tree.all(cst.WithItem):
            if item.asname is not None:
                yield from ((name, item.item) for name in _all_names(item.asname.name))

    def _bindings_by_calls(self) -> Iterator[Binding]:
        tree = self.reading.tree
        yield from ((param.name.value, param.default) for param in tree.all(cst.Param) if param.default is not None)
        for call in tree.all(cst.Call):
            name, values = last(call.func), [argument.value for argument in call.args]
            if name in self.functions:
                for function in self.functions[name]:
                    yield from _arguments(function, call.args, self._is_method(function))
            for function in (f for value in values for f in self.functions.get(last(value), ())):
                yield from ((parameter, value) for parameter in parameters(function) for value in values)
            if name in ADDS and isinstance(call.func, cst.Attribute):
                yield from ((last(call.func.value), value) for value in values)
            if name == "setattr" and len(values) > 2 and text_of(values[1]):
                yield text_of(values[1]), values[2]

    def _returns(self) -> Iterator[Binding]:
        tree = self.reading.tree
        statements: list[cst.Return | cst.Yield] = [*tree.all(cst.Return), *tree.all(cst.Yield)]
        for statement in statements:
            function_name = self._function(statement)
            value = statement.value.item if isinstance(statement.value, cst.From) else statement.value
            if function_name and value is not None:
                yield function_name, value

    def _function(self, node: cst.CSTNode) -> str:
        at = self.reading.tree.enclosing(node, cst.FunctionDef, cst.Lambda)
        return at.name.value if isinstance(at, cst.FunctionDef) else ""

    def _is_method(self, function: Function) -> bool:
        body = self.reading.parent(function)
        return isinstance(self.reading.parent(body) if body else None, cst.ClassDef)


def parameters(function: Function) -> list[str]:
    """All argument names; for a class without a constructor, its annotated fields."""
    if isinstance(function, cst.FunctionDef):
        params = function.params
        stars = [star for star in (params.star_arg, params.star_kwarg) if isinstance(star, cst.Param)]
        return [param.name.value for param in (*params.posonly_params, *params.params, *params.kwonly_params, *stars)]
    for node in walk(function.body):
        if isinstance(node, cst.FunctionDef) and node.name.value == "__init__":
            return parameters(node)[1:]
    return [last(field.target) for field in walk(function.body) if isinstance(field, cst.AnnAssign)]


def _arguments(function: Function, args: Sequence[cst.Arg], method: bool) -> Iterator[Binding]:
    parameter_names = parameters(function)[1 if method and isinstance(function, cst.FunctionDef) else 0 :]
    for index, argument in enumerate(args):
        if argument.keyword is not None:
            yield argument.keyword.value, argument.value
        elif argument.star:
            yield from ((name, argument.value) for name in parameter_names)
        elif parameter_names:
            yield parameter_names[min(index, len(parameter_names) - 1)], argument.value


def _bindings_of_assignment(target: cst.CSTNode, value: cst.BaseExpression) -> Iterator[Binding]:
    if isinstance(target, (cst.Tuple, cst.List)):
        is_parallel = isinstance(value, (cst.Tuple, cst.List)) and len(value.elements) == len(target.elements)
        for index, element in enumerate(target.elements):
            part = value.elements[index].value if is_parallel and isinstance(value, (cst.Tuple, cst.List)) else value
            yield from _bindings_of_assignment(element.value, part)
    else:
        yield from ((name, value) for name in _all_names(target))


def _bindings_of_loop(target: cst.CSTNode, over: cst.BaseExpression) -> Iterator[Binding]:
    pairs: list[tuple[cst.CSTNode, cst.BaseExpression]] = [(target, over)]
    parts = target.elements if isinstance(target, cst.Tuple) else ()
    arguments = over.args if isinstance(over, cst.Call) and last(over.func) == "zip" else ()
    if parts and len(parts) == len(arguments) and not any(argument.star for argument in arguments):
        pairs = [(part.value, argument.value) for part, argument in zip(parts, arguments, strict=True)]
    yield from ((name, value) for part, value in pairs for name in _all_names(part))


def _all_names(target: cst.CSTNode) -> Iterator[str]:
    if isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _all_names(element.value)
    elif isinstance(target, (cst.Name, cst.Attribute)):
        yield last(target)
    elif isinstance(target, (cst.Subscript, cst.StarredElement)):
        yield from _all_names(target.value)


def last(node: cst.CSTNode) -> str:
    """The last part of a name, empty for other expressions."""
    return node.attr.value if isinstance(node, cst.Attribute) else node.value if isinstance(node, cst.Name) else ""


def text_of(node: cst.CSTNode) -> str:
    """The text of a string without its quotes, empty for other expressions."""
    return str(node.raw_value) if isinstance(node, cst.SimpleString) else ""


def called(reading: Reading, call: cst.Call) -> str:
    """The last part of the called name, in the module that it is imported from."""
    canonical_names = reading.names.of(call.func)
    return next(iter(canonical_names)).rpartition(".")[2] if len(canonical_names) == 1 else last(call.func)


def is_foreign(reading: Reading, node: cst.CSTNode) -> bool:
    """Whether it is imported from elsewhere than a framework, so its code is unknown."""
    bound = reading.names.sources(node)
    return bool(bound) and not all(names.FRAMEWORK.match(name) for name in bound)
