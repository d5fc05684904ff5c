"""Find the learning rate schedules of a program's calls, and check what its own schedules do with the step."""

from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst

from migrate.code import names
from migrate.code.facts import Facts, Scope
from migrate.code.tree import Tree, walk

RATES = ("learning_rate", "lr")
SCHEDULES = re.compile(r"^(?:keras|tensorflow\.keras|tf_keras)\.optimizers\.schedules\.(\w+)$")
BASE = "LearningRateSchedule"
CASTS = {"cast", "float", "to_float", "float32", "convert_to_tensor"}


@dataclass(frozen=True)
class Schedule:
    """A schedule by its class name. `needs_float`: the parameter of `__call__` that is used as a float."""

    name: str
    needs_float: str = ""


def of(call: cst.Call, tree: Tree, facts: Facts) -> Schedule | None:
    """The schedule that an optimizer's call gets as its rate; None for numbers and unknown values."""
    rate = next((a.value for a in call.args if a.keyword is not None and a.keyword.value in RATES), None)
    if rate is None and call.args and call.args[0].keyword is None and not call.args[0].star:
        rate = call.args[0].value
    if isinstance(rate, (cst.Name, cst.Attribute)):
        rate = facts.only_value(rate, facts.scopes.get(rate, ()))
    if not isinstance(rate, cst.Call):
        return None
    for name in facts.names.of(rate.func):
        match = SCHEDULES.match(name)
        if match:
            return Schedule(match[1])
    custom_class = _custom_class(names.dotted(rate.func), facts.scopes.get(rate, ()), tree, facts)
    return Schedule(custom_class.name.value, _float_parameter(custom_class)) if custom_class is not None else None


def _custom_class(name: str, scope: Scope, tree: Tree, facts: Facts) -> cst.ClassDef | None:
    for cls in tree.all(cst.ClassDef):
        bases = [base for argument in cls.bases for base in facts.names.of(argument.value)]
        if cls.name.value == name and any((m := SCHEDULES.match(b)) and m[1] == BASE for b in bases):
            return cls
    return None


def _float_parameter(cls: cst.ClassDef) -> str:
    for function in cls.body.body:
        if isinstance(function, cst.FunctionDef) and function.name.value == "__call__":
            parameters = [*function.params.posonly_params, *function.params.params]
            step = parameters[1].name.value if len(parameters) > 1 else ""
            return step if step and _is_uncast(function.body, step) else ""
    return ""


def _is_uncast(body: cst.BaseSuite, step: str) -> bool:
    inside: set[cst.CSTNode] = set()
    for node in walk(body):
        if isinstance(node, cst.Call):
            function = names.dotted(node.func)
            if function.rpartition(".")[2] in CASTS or function.startswith("self."):
                inside.update(argument.value for argument in node.args)
        elif isinstance(node, cst.Assign) and any(names.dotted(t.target) == step for t in node.targets):
            return False
        elif isinstance(node, (cst.Attribute, cst.Arg)):
            inside.update(part for part in (getattr(node, "attr", None), getattr(node, "keyword", None)) if part)
    return any(isinstance(node, cst.Name) and node.value == step and node not in inside for node in walk(body))
