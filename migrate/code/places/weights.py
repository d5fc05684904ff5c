"""Rewrite `get_weights` and `set_weights` of optimizers, and the files of their lists."""

from __future__ import annotations

import re
from collections.abc import Callable

import libcst as cst

from migrate.code import facts, names, targets
from migrate.code.findings import BY_HAND, REWRITTEN, SAME, UNSURE
from migrate.code.program import Reading

LISTS = re.compile(r"\.(?:npy|npz|pkl|pickle|p)$")
SAVE_BY_NAME = "save it by name: optim.save_checkpoint(path, {base}, variables)"
LOAD_BY_NAME = "load it by name: migrate.restore(path, {base}, variables)"


def look(reading: Reading, node: cst.Call) -> None:
    """Look at `optimizer.get_weights()` or `optimizer.set_weights(...)`, and what created the slots before the
    latter."""
    _making_slots(reading, node)
    if not isinstance(node.func, cst.Attribute) or node.func.attr.value not in ("get_weights", "set_weights"):
        return
    base = node.func.value
    if not reading.is_optimizer(base):
        if isinstance(base, cst.Attribute) and base.attr.value == "optimizer":
            reading.add(node, UNSURE, f"is {reading.text(base)} a Keras optimizer? then its state is saved by name now")
        return
    if reading.target == targets.TF_KERAS:
        reading.add(node, SAME, "legacy optimizers keep it")
        return
    if node.func.attr.value == "get_weights":
        _saving(reading, node, base)
    else:
        _loading(reading, node, base)


def _making_slots(reading: Reading, node: cst.Call) -> None:
    """Remove `model._make_train_function()`: old Keras had no slots without it; restoring by name creates them."""
    if not isinstance(node.func, cst.Attribute) or node.func.attr.value != "_make_train_function":
        return
    statement = reading.parent(node)
    line = reading.parent(statement) if statement is not None else None
    if reading.facts.kind(node.func.value, reading.scope(node)) != facts.MODEL:
        reading.add(node, UNSURE, "models have no _make_train_function now: optimizer.build(variables) makes the slots")
    elif reading.target == targets.OPTIM and _is_restored(reading, node) and isinstance(line, cst.SimpleStatementLine):
        reading.edits[line] = lambda updated: cst.RemoveFromParent()
        reading.add(node, REWRITTEN, "gone: migrate.restore makes the slots itself")
    else:
        base = reading.text(node.func.value)
        reading.add(node, BY_HAND, f"{base}.optimizer.build({base}.trainable_variables) makes the slots now")


def _is_restored(reading: Reading, node: cst.Call) -> bool:
    """Whether the line is a separate statement, and the program sets the weights of this model's optimizer."""
    base = reading.text(cst.ensure_type(node.func, cst.Attribute).value)
    return isinstance(reading.parent(node), cst.Expr) and f"{base}.optimizer.set_weights(" in reading.program.code


def look_at_weights(reading: Reading, node: cst.Attribute) -> None:
    """Look at `optimizer.weights`, whose order differs."""
    if node.attr.value != "weights" or reading.target == targets.TF_KERAS:
        return
    if not reading.is_optimizer(node.value):
        if isinstance(node.value, cst.Attribute) and node.value.attr.value == "optimizer":
            reading.add(
                node, UNSURE, f"is {reading.text(node.value)} a Keras optimizer? then its weights have a new order"
            )
    else:
        reading.add(
            node, BY_HAND, "the list of weights has another order now: read slots by name, get_slot(variable, name)"
        )


def _saving(reading: Reading, node: cst.Call, base: cst.BaseExpression) -> None:
    text = reading.text(base)
    variables = _model_variables(reading, base)
    call = _call_around(reading, node)
    path = None
    if call is not None and variables:
        function = reading.names.of(call.func)
        if "numpy.save" in function and call.args[1].value is node:
            path = call.args[0].value
        elif function & {"pickle.dump", "joblib.dump", "cPickle.dump"} and call.args[0].value is node:
            file = call.args[1].value
            goes_too = isinstance(file, cst.Call) or _with_around(reading, call) is not None
            path = _opened_path(reading, file) if goes_too else None
    slots = _slots_path(reading, path) if path is not None else None
    if (
        call is None
        or slots is None
        or reading.target != targets.OPTIM
        or not isinstance(reading.parent(call), cst.Expr)
    ):
        advice = (
            SAVE_BY_NAME.format(base=text)
            if reading.target == targets.OPTIM
            else ("Keras 3 has no lists of weights: save the model whole, model.save('….keras')")
        )
        reading.add(node, BY_HAND, advice)
        return
    new = f"{reading.optim}.save_checkpoint({slots}, {text}, {variables})"
    opened = _with_around(reading, call)
    if opened is not None:
        reading.edits[opened] = _statement(opened, new)
    else:
        reading.edits[call] = _constant(new)
    reading.imports.add("import optim" if reading.optim == "optim" else f"import optim as {reading.optim}")
    reading.add(call, REWRITTEN, _convert(reading, path), new)


def _loading(reading: Reading, node: cst.Call, base: cst.BaseExpression) -> None:
    text, variables = reading.text(base), _model_variables(reading, base)
    source = node.args[0].value if node.args else None
    statement: cst.CSTNode | None = None
    if isinstance(source, cst.Name):
        name = source
        source = reading.facts.only_value(name, reading.scope(node))
        statement = _reading_statement(reading, name, source)
        source = source if statement is not None else None
    path = None
    if isinstance(source, cst.Call):
        function = reading.names.of(source.func)
        if "numpy.load" in function:
            path = source.args[0].value
        elif function & {"pickle.load", "joblib.load", "cPickle.load"}:
            path = _opened_path(reading, source.args[0].value)
    slots = _slots_path(reading, path) if path is not None else None
    if slots is None or not variables or not isinstance(reading.parent(node), cst.Expr):
        reading.add(node, BY_HAND, LOAD_BY_NAME.format(base=text))
        return
    new = f"migrate.restore({slots}, {text}, {variables})"
    opened = _with_around(reading, node)
    if opened is not None:
        reading.edits[opened] = _statement(opened, new)
    else:
        reading.edits[node] = _constant(new)
    if statement is not None:
        reading.edits[statement] = lambda updated: cst.RemoveFromParent()
    reading.imports.add("import migrate")
    reading.add(node, REWRITTEN, _convert(reading, path), new)


def _model_variables(reading: Reading, base: cst.BaseExpression) -> str:
    if isinstance(base, cst.Attribute) and base.attr.value == "optimizer":
        return f"{reading.text(base.value)}.trainable_variables"
    name = names.dotted(base)
    models = {
        names.dotted(cst.ensure_type(call.func, cst.Attribute).value) for call in reading.usage.compiled_with(name)
    }
    only = next(iter(models)) if name and len(models) == 1 else ""
    return f"{only}.trainable_variables" if only else ""


def _call_around(reading: Reading, node: cst.CSTNode) -> cst.Call | None:
    parent = reading.parent(node)
    call = reading.parent(parent) if isinstance(parent, cst.Arg) else None
    return call if isinstance(call, cst.Call) and len(call.args) >= 2 else None


def _opened_path(reading: Reading, node: cst.BaseExpression) -> cst.BaseExpression | None:
    if isinstance(node, cst.Call) and names.dotted(node.func) == "open":
        return node.args[0].value
    name, at = names.dotted(node), reading.parent(node)
    while name and at is not None:
        if isinstance(at, cst.With):
            for item in at.items:
                called = item.item
                same = item.asname is not None and names.dotted(item.asname.name) == name
                if same and isinstance(called, cst.Call) and names.dotted(called.func) == "open":
                    return called.args[0].value
        at = reading.parent(at)
    return None


def _alone_in_with(reading: Reading, line: cst.CSTNode | None) -> cst.With | None:
    block = reading.parent(line) if line is not None else None
    statement = reading.parent(block) if isinstance(block, cst.IndentedBlock) and len(block.body) == 1 else None
    if isinstance(statement, cst.With) and len(statement.items) == 1:
        called = statement.items[0].item
        return statement if isinstance(called, cst.Call) and names.dotted(called.func) == "open" else None
    return None


def _with_around(reading: Reading, call: cst.Call) -> cst.With | None:
    """The `with` of the old list's file, which must no longer be opened: that would empty it."""
    expression = reading.parent(call)
    return _alone_in_with(reading, reading.parent(expression) if expression is not None else None)


def _reading_statement(reading: Reading, name: cst.Name, value: cst.BaseExpression | None) -> cst.CSTNode | None:
    assignment = reading.parent(value) if value is not None else None
    line = reading.parent(assignment) if isinstance(assignment, cst.Assign) else None
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1 or reading.usage.names[name.value] != 2:
        return None
    return _alone_in_with(reading, line) or line


def _statement(old: cst.With, new: str) -> Callable[[cst.CSTNode], cst.CSTNode]:
    line = cst.ensure_type(cst.parse_statement(new), cst.SimpleStatementLine)
    return lambda updated: line.with_changes(leading_lines=old.leading_lines)


def _slots_path(reading: Reading, path: cst.BaseExpression | None) -> str | None:
    """The path for the state by name: the literal path without its suffix, else None."""
    if not isinstance(path, cst.SimpleString) or not isinstance(path.evaluated_value, str):
        return None
    return repr(_stem(path.evaluated_value)).replace("'", path.quote if len(path.quote) == 1 else '"')


def _stem(path: str) -> str:
    return LISTS.sub("", path) + ".slots"


def _convert(reading: Reading, path: cst.BaseExpression | None) -> str:
    text = str(path.evaluated_value) if isinstance(path, cst.SimpleString) else "PATH"
    command = f"dtopt migrate checkpoint {text} {_stem(text)} --optimizer-from {reading.program.path} --variables FILE"
    return f"migrate the existing list with: {command}"


def _constant(text: str) -> Callable[[cst.CSTNode], cst.CSTNode]:
    return lambda updated: cst.parse_expression(text)
