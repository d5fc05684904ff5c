"""Rewrite access to an optimizer's hyperparameters and slots through old classes' methods.

Sources: `keras/optimizer_v2/optimizer_v2.py` 2.4 (`_set_hyper`, `_get_hyper`, `_decayed_lr`, `get_slot`, `variables`),
Keras 3.15 `src/optimizers/base_optimizer.py`. Measured with both: a number set between two calls of `fit` has an effect
with optim but not with Keras 3.
"""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from migrate.code import names, targets
from migrate.code.findings import BY_HAND, REWRITTEN, SAME, UNSURE
from migrate.code.places.attributes import HYPERS, RATES
from migrate.code.program import Reading

NUMBER = "it is a plain number there, which a compiled train step keeps: set it before compile, or compile again"
KEPT = "legacy optimizers keep it"
ADVICE = {
    "_decayed_lr": "{base}.learning_rate is the rate of this step there, with its schedule",
    "get_slot": "slots are in {base}.variables, by their names; optim has get_slot",
    "get_slot_names": "optim has {base}.slot_names; Keras 3 has the slots in {base}.variables, by their names",
    "variables": "it is a list there, not a method, and begins with the iteration and the learning rate",
    "_hyper": "hyperparameters are attributes there, as {base}.learning_rate",
}
"""Methods and attributes of old optimizers -> their replacement."""
PRIVATE = ("_set_hyper", "_get_hyper", "_decayed_lr", "_hyper", "get_slot_names")
"""Those that only optimizers have."""


def look_at_call(reading: Reading, node: cst.Call) -> None:
    """Handle `o._set_hyper(...)`, `o.get_slot(...)`, `o.beta_1.numpy()`, `K.set_value(o.momentum, x)` and the like."""
    if not isinstance(node.func, cst.Attribute) or reading.facts.in_rule(reading.scope(node)):
        return
    method, base = node.func.attr.value, node.func.value
    first = node.args[0].value if node.args else None
    if {m[1] for m in map(names.BACKEND.match, reading.names.of(node.func)) if m} == {"set_value"}:
        if isinstance(first, cst.Attribute) and _is_other_hyperparameter(reading, first) and len(node.args) == 2:
            _rewrite_setter(reading, node, reading.text(first.value), first.attr.value, node.args[1].value)
    elif method == "numpy" and isinstance(base, cst.Attribute) and _is_other_hyperparameter(reading, base):
        _rewrite(reading, node, f"float({reading.text(base)})")
    elif method in ADVICE or method in PRIVATE:
        _method(reading, node, method, base)


def look_at_attribute(reading: Reading, node: cst.Attribute) -> None:
    """Handle `o._hyper`, and `o.beta_1 = x`."""
    if reading.facts.in_rule(reading.scope(node)):
        return
    if node.attr.value == "_hyper" and reading.has_framework:
        reading.add(node, BY_HAND, ADVICE["_hyper"].format(base=reading.text(node.value)))
    elif isinstance(reading.parent(node), cst.AssignTarget) and _is_other_hyperparameter(reading, node):
        of_keras = reading.target == targets.KERAS
        reading.add(node, BY_HAND if of_keras else SAME, NUMBER if of_keras else "")


def _is_other_hyperparameter(reading: Reading, node: cst.Attribute) -> bool:
    of_model = isinstance(node.value, cst.Attribute) and node.value.attr.value == "optimizer"
    return node.attr.value in HYPERS and (reading.is_optimizer(node.value) or (of_model and reading.has_framework))


def _method(reading: Reading, node: cst.Call, method: str, base: cst.BaseExpression) -> None:
    text = reading.text(base)
    if not reading.is_optimizer(base):
        if method in PRIVATE and reading.has_framework:
            reading.add(node, UNSURE, f"is {text} a Keras optimizer? then: its hyperparameters are attributes now")
        return
    names_of_args = [a.value.evaluated_value for a in node.args[:1] if isinstance(a.value, cst.SimpleString)]
    name = str(names_of_args[0]) if names_of_args else ""
    name = "learning_rate" if name in RATES else name
    if method == "_set_hyper" and name and len(node.args) == 2:
        _rewrite_setter(reading, node, text, name, node.args[1].value)
    elif method == "_get_hyper" and name and len(node.args) == 1:
        _rewrite(reading, node, f"{text}.{name}")
    elif method in ("_set_hyper", "_get_hyper"):
        reading.add(node, BY_HAND, ADVICE["_hyper"].format(base=text))
    elif method == "get_slot" and reading.target == targets.OPTIM:
        reading.add(node, SAME)
    elif reading.target == targets.TF_KERAS:
        reading.add(node, SAME, KEPT)
    else:
        reading.add(node, BY_HAND, ADVICE[method].format(base=text))


def _rewrite_setter(reading: Reading, node: cst.Call, base: str, name: str, value: cst.BaseExpression) -> None:
    new = f"{base}.{name} = {reading.text(value)}"
    if reading.target != targets.OPTIM and name != "learning_rate":
        reading.add(node, *((SAME, KEPT) if reading.target == targets.TF_KERAS else (BY_HAND, NUMBER)))
    elif not isinstance(reading.parent(node), cst.Expr) or "\n" in new:
        reading.add(node, BY_HAND, f"make it a separate statement: {' '.join(new.split())}")
    else:
        reading.edits[reading.parent(node) or node] = _parsed(new)
        reading.add(node, REWRITTEN, "", new)


def _parsed(statement: str) -> Callable[[cst.CSTNode], cst.CSTNode]:
    line = cst.ensure_type(cst.parse_statement(statement), cst.SimpleStatementLine)
    return lambda updated: line.body[0]


def _rewrite(reading: Reading, node: cst.Call, new: str) -> None:
    reading.edits[node] = lambda updated: cst.parse_expression(new)
    reading.add(node, REWRITTEN, "", new)
