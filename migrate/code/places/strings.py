"""Rewrite optimizers by name: `compile("sgd")`, `optimizers.get("sgd")`, `optimizers.deserialize({...})`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import libcst as cst

from migrate.code import calls, facts, names, targets
from migrate.code.findings import BY_HAND, DIFFERS, REWRITTEN, SAME, UNSURE
from migrate.code.program import Reading
from migrate.code.usage import is_compile
from migrate.generations import traits

KEEPS_STATE = re.compile(r"\.optimizer\.[gs]et_weights\(")
"""Methods that save an optimizer's state by name, for which it must be one of `optim`."""
DEFAULT = "rmsprop"
EMPTY_CALL = cst.parse_expression("f()")


def look_at_compile(reading: Reading, node: cst.Call) -> None:
    """Look at `model.compile(...)` if its optimizer is a string or a name."""
    if not is_compile(node) or reading.names.of(node.func):
        return
    value = facts.compiled(node)
    base = cst.ensure_type(node.func, cst.Attribute).value
    is_model = reading.facts.kind(base, reading.scope(node)) == facts.MODEL
    certain = is_model or (facts.is_keras_compile(node) and reading.has_framework)
    if value is None:
        _default(reading, node, certain)
    elif reading.text(value) != f"{reading.text(base)}.optimizer":
        _look_at_compiled(reading, value, certain)


def _look_at_compiled(reading: Reading, value: cst.BaseExpression, certain: bool) -> None:
    """Look at an argument of `compile`: a string, a name, a config, or one of two of these."""
    if isinstance(value, cst.IfExp):
        for branch in (value.body, value.orelse):
            _look_at_compiled(reading, branch, certain)
    elif isinstance(value, cst.BooleanOperation):
        for branch in (value.left, value.right):
            _look_at_compiled(reading, branch, certain)
    elif _name_of(value) is not None and _name_of(value) in names.STRINGS:
        by_name(reading, value, _name_of(value) or "", certain)
    elif isinstance(value, (cst.Name, cst.Attribute)) and certain:
        _named(reading, value)
    elif certain and _values_by_key(value) is not None:
        _config(reading, value, value, names.of_string("sgd", reading.program.code).rpartition(".")[0] + ".get")


def _default(reading: Reading, node: cst.Call, certain: bool) -> None:
    """Rewrite `compile(loss="mse")`, which means RMSprop. Standalone Keras before 3 had no default."""
    keywords = {argument.keyword.value for argument in node.args if argument.keyword}
    qualified = names.of_string(DEFAULT, reading.program.code)
    has_default = not qualified.startswith("keras.") or any(
        traits(release.generation).compiles_without_optimizer
        for release in calls.releases_of(qualified, reading.releases)
    )
    if "loss" not in keywords or any(a.star for a in node.args) or not certain or not has_default:
        return
    by_name(reading, node, DEFAULT, certain)
    if node in reading.edits:
        at, finding = reading.entries.pop()
        new = _with_optimizer(node, finding.new)
        reading.edits[node] = lambda updated: _with_optimizer(cst.ensure_type(updated, cst.Call), finding.new)
        text = " ".join(reading.text(new).split())
        reading.entries.append((at, replace(finding, new=text, message=finding.message or "its default is RMSprop")))


def _with_optimizer(call: cst.Call, optimizer: str) -> cst.Call:
    value = cst.parse_expression(optimizer)
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    no_space = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return call.with_changes(args=[cst.Arg(value, cst.Name("optimizer"), equal=no_space, comma=comma), *call.args])


def _named(reading: Reading, value: cst.Name | cst.Attribute) -> None:
    kind = reading.facts.kind(value, reading.scope(value))
    if kind == facts.OPTIMIZER:
        return
    bound = reading.facts.only_value(value, reading.scope(value))
    name = _name_of(bound) if bound is not None else None
    if kind == facts.STRING and name in names.STRINGS:
        by_name(reading, value, name or "", True)
    elif kind == facts.CLASS:
        return
    else:
        reading.add(
            value,
            UNSURE,
            "the optimizer compiled here comes from elsewhere: an optimizer object is fine, a name such as 'rmsprop'"
            " means today's rule and not the old one",
        )


def look_at_lookup(reading: Reading, node: cst.Call) -> None:
    """Look at `optimizers.get(...)` and `optimizers.deserialize(...)`."""
    canonical_names = reading.names.of(node.func)
    if not canonical_names or not all(map(names.LOOKUPS.match, canonical_names)):
        return
    value = node.args[0].value if node.args else None
    name = _name_of(value) if value is not None else None
    if value is not None and name in names.STRINGS:
        by_name(reading, value, name or "", True, whole=node)
    elif value is not None and _values_by_key(value) is not None:
        _config(reading, node, value, next(iter(canonical_names)))
    else:
        reading.add(
            node,
            BY_HAND,
            "the optimizer is chosen elsewhere: a name or config of an old release means today's rule here;"
            " migrate the config, or create the optimizer in the code",
        )


def by_name(
    reading: Reading, node: cst.BaseExpression, name: str, certain: bool, whole: cst.BaseExpression | None = None
) -> None:
    """Handle a string for a class with its defaults: kept if they and the rule are still the same."""
    qualified = names.of_string(name, reading.program.code)
    call = cst.ensure_type(EMPTY_CALL, cst.Call)
    target = targets.KERAS if reading.target == targets.OPTIM else reading.target
    answers = reading.outcomes(qualified, call, replace(reading.place, target=target, by_name=True))
    is_same = all(a.target is not None and not a.target.reasons and not a.target.arguments for a in answers)
    if is_same and not (reading.target == targets.OPTIM and KEEPS_STATE.search(reading.program.code)):
        reading.add(node, SAME, "this name means the same rule and defaults there")
        return
    outcomes = reading.outcomes(qualified, call)
    if not certain:
        reading.add(node, UNSURE, f"is this a Keras model? then: {_objects(reading, outcomes)}")
        return
    answer = reading.one(node, outcomes)
    if answer is not None:
        _replace(reading, node, answer, whole)


def _objects(reading: Reading, outcomes: Sequence[calls.Outcome]) -> str:
    """The optimizer that a name means, if it is the same in all releases."""
    new = {_call(reading, outcome.target) for outcome in outcomes if outcome.target is not None}
    if len(new) != 1:
        return "give it an optimizer instead of a name"
    return f"optim.for_keras({new.pop()})" if reading.target == targets.OPTIM else new.pop()


def _replace(
    reading: Reading, node: cst.BaseExpression, answer: calls.Outcome, whole: cst.BaseExpression | None
) -> None:
    if answer.target is None:
        reading.add(node, BY_HAND, str(answer.error))
        return
    call = answer.target
    if not call.arguments and call.reasons and reading.target == targets.KERAS:
        reading.add(node, DIFFERS, "; ".join(call.reasons))
        return
    if isinstance(node, (cst.Name, cst.Attribute)):
        reading.add(
            node, BY_HAND, f"the name means another rule now: {'; '.join(call.reasons) or _call(reading, call)}"
        )
        return
    module = reading.optim if reading.target == targets.OPTIM else call.module
    text = _call(reading, call)
    if reading.target == targets.OPTIM:
        text = f"{reading.optim}.for_keras({text})"
    place = whole if whole is not None else node
    reading.edits[place] = _constant(text)
    reading.imports.add("import optim as dtopt_optim" if module == "dtopt_optim" else f"import {module.split('.')[0]}")
    reading.add(place, DIFFERS if call.reasons else REWRITTEN, "; ".join(call.reasons), text)


def _call(reading: Reading, target: targets.Target) -> str:
    return target.call(reading.optim if reading.target == targets.OPTIM else "")


def _constant(text: str) -> Callable[[cst.CSTNode], cst.CSTNode]:
    return lambda updated: cst.parse_expression(text)


def _config(reading: Reading, node: cst.BaseExpression, config: cst.BaseExpression, name: str) -> None:
    """Replace `deserialize({"class_name": "SGD", "config": {"lr": 0.1}})` by the equivalent call."""
    members = _values_by_key(config)
    cls = _name_of(members["class_name"]) if members and "class_name" in members else None
    inner = members.get("config") if members else None
    inner = inner if members and "config" in members else cst.Dict([])
    has_more = isinstance(node, cst.Call) and node is not config and len(node.args) != 1
    if cls not in names.STRINGS or inner is None or _values_by_key(inner) is None or has_more:
        reading.add(node, BY_HAND, "write the config as a call of the class, so that it can be read")
        return
    arguments = ", ".join(f"{key}={reading.text(value)}" for key, value in (_values_by_key(inner) or {}).items())
    call = cst.ensure_type(
        cst.parse_expression(f"{name.rpartition('.')[0]}.{names.STRINGS[cls]}({arguments})"), cst.Call
    )
    qualified = f"{name.rpartition('.')[0]}.{names.STRINGS[cls]}"
    answer = reading.one(node, reading.outcomes(qualified, call))
    if answer is not None:
        _replace(reading, config, answer, node)


def _values_by_key(node: cst.BaseExpression) -> dict[str, cst.BaseExpression] | None:
    if isinstance(node, cst.Call) and names.dotted(node.func) == "dict":
        keys = {a.keyword.value: a.value for a in node.args if a.keyword is not None}
        return keys if len(keys) == len(node.args) else None
    if not isinstance(node, cst.Dict):
        return None
    values = {}
    for element in node.elements:
        if not isinstance(element, cst.DictElement) or not isinstance(element.key, cst.SimpleString):
            return None
        values[str(element.key.evaluated_value)] = element.value
    return values


def _name_of(node: cst.BaseExpression | None) -> str | None:
    if isinstance(node, cst.SimpleString) and isinstance(node.evaluated_value, str):
        return node.evaluated_value.lower()
    return None
