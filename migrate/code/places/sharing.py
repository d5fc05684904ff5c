"""Find optimizers shared by several models, by their steps: only old classes create slots for any variable."""

from __future__ import annotations

import re

import libcst as cst

from migrate.code import names
from migrate.code.program import Reading

STEPS = {"apply_gradients": 0, "minimize": 1}
"""Methods that make a step, and the argument with the variables."""
OF_MODEL = re.compile(r"\.(?:trainable_)?(?:variables|weights)$")


def stepped(reading: Reading, optimizer: cst.BaseExpression | str, at: cst.CSTNode) -> list[str]:
    """Return the names of the variables of different models that an optimizer steps; empty if there is one model.

    Args:
      optimizer: its name. at: the place of the name.
    """
    name = optimizer if isinstance(optimizer, str) else reading.text(optimizer)
    home = reading.facts.bound(name, reading.scope(at))
    if home is None:
        return []
    calls = [c for c in reading.usage.methods.get(name, ()) if reading.facts.bound(name, reading.scope(c)) == home]
    variables = [reading.text(expression) for expression in map(_variables, calls) if expression is not None]
    models = {OF_MODEL.sub("", text): text for text in reversed(variables)}
    return sorted(models.values()) if len(models) > len(reading.facts.values[home, name]) else []


def _variables(call: cst.Call) -> cst.BaseExpression | None:
    method = cst.ensure_type(call.func, cst.Attribute).attr.value
    if method not in STEPS:
        return None
    named = [a.value for a in call.args if a.keyword is not None and a.keyword.value == "var_list"]
    plain = [a.value for a in call.args if a.keyword is None and not a.star]
    variables = next(iter([*named, *plain[STEPS[method] :]]), None)
    if method == "minimize":
        return variables
    if isinstance(variables, cst.Call) and names.dotted(variables.func) == "zip" and len(variables.args) == 2:
        return variables.args[1].value
    return None
