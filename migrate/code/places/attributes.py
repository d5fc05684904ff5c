"""Rewrite `optimizer.lr`, `.decay` and `.iterations`, and `K.get_value` and `K.set_value` of them."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from migrate.code import names, targets
from migrate.code.findings import BY_HAND, REWRITTEN, SAME, UNSURE
from migrate.code.program import Reading, one_line

RATES = ("lr", "learning_rate")
RATE = "learning_rate"
HYPERS = ("momentum", "beta_1", "beta_2", "rho", "schedule_decay")
"""Attributes that old classes stored in variables of the backend."""
READERS = {"read_value", "value", "get_value", "eval"}
"""Methods for reading the variable in which old classes stored the rate."""
DECAYED = (
    "lr / (1 + decay * iterations) is the rate that a schedule already computes: use float(optimizer.learning_rate)"
    " without decay"
)


def look_at_call(reading: Reading, node: cst.Call) -> bool:
    """Rewrite `K.get_value(o.lr)`, `K.eval(o.lr)`, `K.set_value(o.lr, x)`, `hasattr(o, "lr")`; True for these calls."""
    canonical_names = reading.names.of(node.func)
    functions = {m[1] for m in map(names.BACKEND.match, canonical_names) if m}
    if functions and reading.facts.in_rule(reading.scope(node)):
        return True
    first = node.args[0].value if node.args else None
    if isinstance(first, cst.Name) and functions:
        bound = reading.facts.only_value(first, reading.scope(node))
        if isinstance(bound, cst.Attribute) and bound.attr.value in RATES and reading.is_optimizer(bound.value):
            return _through_a_name(reading, node, functions, bound)
    if len(functions) == 1 and isinstance(first, cst.Attribute):
        function = next(iter(functions))
        attribute_names = (*RATES, "iterations", "decay", *HYPERS)
        if function in ("get_value", "eval") and first.attr.value in attribute_names:
            _read(reading, node, first)
            return True
        if function == "set_value" and first.attr.value in (*RATES, "iterations", "decay"):
            _set(reading, node, first)
            return True
    if isinstance(node.func, cst.Name) and node.func.value in ("hasattr", "getattr", "setattr") and len(node.args) > 1:
        return _by_string(reading, node)
    return False


def _through_a_name(reading: Reading, node: cst.Call, functions: set[str], rate: cst.Attribute) -> bool:
    """Handle `lr = optimizer.lr; K.set_value(lr, x)`: a name for the rate, which was a variable of the backend."""
    base = f"{reading.text(rate.value)}.{RATE}"
    if functions <= {"get_value", "eval"}:
        reading.edits[node] = lambda updated: cst.parse_expression(f"float({base})")
        reading.add(node, REWRITTEN, "", f"float({base})")
        return True
    if functions == {"set_value"}:
        reading.add(node, BY_HAND, f"set the optimizer's own: {base} = …")
        return True
    return False


def _certain(reading: Reading, base: cst.BaseExpression) -> bool:
    """Whether this is surely an optimizer: its call creates one, or it is `.optimizer` of an object of Keras."""
    if reading.is_optimizer(base):
        return True
    return isinstance(base, cst.Attribute) and base.attr.value == "optimizer"


def _read(reading: Reading, node: cst.Call, value: cst.Attribute) -> None:
    name = value.attr.value
    if not _certain(reading, value.value):
        attribute = RATE if name in RATES else name
        reading.add(node, UNSURE, f"is {reading.text(value.value)} an optimizer? then: float(….{attribute})")
    elif name == "decay":
        reading.add(node, BY_HAND, DECAYED)
    else:
        kind = "int" if name == "iterations" else "float"
        attribute = RATE if name in RATES else name
        parent = reading.parent(reading.parent(node) or node)
        inside = isinstance(parent, cst.Call) and reading.text(parent.func) == kind and len(parent.args) == 1
        base = reading.text(value.value)
        text = f"{base}.{attribute}" if inside else f"{kind}({base}.{attribute})"
        reading.edits[node] = _reading_of(kind, attribute, inside)
        reading.add(node, REWRITTEN, "", text)


def _reading_of(kind: str, attribute: str, inside: bool) -> Callable[[cst.CSTNode], cst.CSTNode]:
    def edit(updated: cst.CSTNode) -> cst.CSTNode:
        value = cst.ensure_type(cst.ensure_type(updated, cst.Call).args[0].value, cst.Attribute)
        renamed = value.with_changes(attr=cst.Name(attribute))
        return renamed if inside else cst.Call(cst.Name(kind), [cst.Arg(renamed)])

    return edit


def _set(reading: Reading, node: cst.Call, value: cst.Attribute) -> None:
    name = value.attr.value
    statement = reading.parent(node)
    if not _certain(reading, value.value):
        reading.add(node, UNSURE, f"is {reading.text(value.value)} an optimizer? then: ….learning_rate = …")
    elif name not in RATES or len(node.args) != 2:
        reading.add(
            node, BY_HAND, f"{name} is set: " + (DECAYED if name == "decay" else "restore a checkpoint instead")
        )
    elif not isinstance(statement, cst.Expr):
        reading.add(node, BY_HAND, "assignment within an expression: make it a statement, ….learning_rate = …")
    else:
        text = f"{reading.text(value.value)}.{RATE} = {reading.text(node.args[1].value)}"
        reading.edits[statement] = _setting
        reading.edits.setdefault(node, lambda updated: updated)
        reading.add(node, REWRITTEN, "", " ".join(text.split()))


def _setting(updated: cst.CSTNode) -> cst.CSTNode:
    call = cst.ensure_type(cst.ensure_type(updated, cst.Expr).value, cst.Call)
    target = cst.ensure_type(call.args[0].value, cst.Attribute).with_changes(attr=cst.Name(RATE))
    return _assigned(target, call.args[1].value)


def _assigned(target: cst.BaseExpression, value: cst.BaseExpression) -> cst.Assign:
    if "\n" in cst.Module([]).code_for_node(value) and not getattr(value, "lpar", ()):
        value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.Assign([cst.AssignTarget(cst.ensure_type(target, cst.Attribute))], value)


def _by_string(reading: Reading, node: cst.Call) -> bool:
    base, name = node.args[0].value, node.args[1].value
    text = name.evaluated_value if isinstance(name, cst.SimpleString) else None
    if text not in ("lr", "weights") or not _certain(reading, base):
        return False
    if text == "weights":
        if reading.target != targets.TF_KERAS:
            reading.add(node, BY_HAND, "the list of weights has another order now: read slots by name")
        return True
    new = cst.ensure_type(name, cst.SimpleString).value.replace("lr", RATE)
    reading.edits[name] = lambda updated: cst.ensure_type(updated, cst.SimpleString).with_changes(value=new)
    reading.add(node, REWRITTEN, "", reading.text(node).replace(reading.text(name), new))
    return True


def look_at_attribute(reading: Reading, node: cst.Attribute) -> None:
    """Rewrite `optimizer.lr` and the like, outside of the backend's functions."""
    name = node.attr.value
    if name not in (*RATES, "decay", "iterations", "clipnorm") or _is_argument_of_backend(reading, node):
        return
    if not reading.is_optimizer(node.value):
        of_model = isinstance(node.value, cst.Attribute) and node.value.attr.value == "optimizer"
        if of_model and name in ("lr", "decay") and reading.has_framework:
            reading.add(node, UNSURE, f"is {reading.text(node.value)} a Keras optimizer? then: ….{RATE}")
        return
    if name == "iterations":
        reading.add(node, SAME)
    elif name == "clipnorm":
        reading.add(node, BY_HAND, "read global_clipnorm if the constructor now sets that")
    elif name == "decay":
        if reading.target == targets.TF_KERAS:
            reading.add(node, SAME)
        else:
            reading.add(node, BY_HAND, DECAYED)
    elif not _of_variable(reading, node):
        _rename(reading, node)


def _rename(reading: Reading, node: cst.Attribute) -> None:
    if node.attr.value == RATE:
        return
    reading.edits[node] = lambda updated: cst.ensure_type(updated, cst.Attribute).with_changes(attr=cst.Name(RATE))
    reading.add(node, REWRITTEN, "", f"{reading.text(node.value)}.{RATE}")


def _of_variable(reading: Reading, node: cst.Attribute) -> bool:
    """Rewrite methods of the old variable that not every target's rate has: `optimizer.lr.value()`, `.set_value(x)` and
    `session.run(optimizer.lr.assign(x))`; True for these."""
    method = reading.parent(node)
    call = reading.parent(method) if isinstance(method, cst.Attribute) and method.value is node else None
    if not isinstance(method, cst.Attribute) or not isinstance(call, cst.Call) or call.func is not method:
        return False
    name, base = method.attr.value, reading.text(node.value)
    if name in READERS:
        kinds = reading.parent(reading.parent(call) or call)
        inside = isinstance(kinds, cst.Call) and reading.text(kinds.func) == "float" and len(kinds.args) == 1
        text = f"{base}.{RATE}" if inside else f"float({base}.{RATE})"
        reading.edits[call] = lambda updated: cst.parse_expression(text)
        reading.add(call, REWRITTEN, "", text)
        return True
    run = _run_in_session(reading, call) if name == "assign" else None
    if name != "set_value" and run is None:
        return False
    statement = reading.parent(run or call)
    whole = run or call
    if not isinstance(statement, cst.Expr) or len(call.args) != 1:
        reading.add(whole, BY_HAND, f"set it in a statement:\n{base}.{RATE} = …")
        return True
    reading.edits[statement] = lambda updated: _assigned(
        cst.parse_expression(f"{base}.{RATE}"), _argument_of(updated, through=2 if run else 1)
    )
    reading.add(whole, REWRITTEN, "", one_line(f"{base}.{RATE} = {reading.text(call.args[0].value)}"))
    return True


def _argument_of(statement: cst.CSTNode, through: int) -> cst.BaseExpression:
    value = cst.ensure_type(statement, cst.Expr).value
    for _ in range(through):
        value = cst.ensure_type(value, cst.Call).args[0].value
    return value


def _run_in_session(reading: Reading, call: cst.Call) -> cst.Call | None:
    argument = reading.parent(call)
    run = reading.parent(argument) if isinstance(argument, cst.Arg) else None
    if isinstance(run, cst.Call) and isinstance(run.func, cst.Attribute) and run.func.attr.value == "run":
        return run if len(run.args) == 1 else None
    return None


def _is_argument_of_backend(reading: Reading, node: cst.Attribute) -> bool:
    parent = reading.parent(node)
    call = reading.parent(parent) if isinstance(parent, cst.Arg) else None
    if not isinstance(call, cst.Call) or not call.args or call.args[0] is not parent:
        return False
    functions = {m[1] for m in map(names.BACKEND.match, reading.names.of(call.func)) if m}
    return bool(functions & {"get_value", "eval", "set_value"})
