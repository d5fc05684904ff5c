"""Find what a program does to variables and slots between steps: decay by hand, clipped weights."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from migrate.code.changes.flow import ASSIGNS, ASSIGNS_FIRST, Flow, called, last
from migrate.code.program import Reading
from migrate.code.tree import walk

TRAINED = {"trainable_variables", "trainable_weights", "variables", "weights", "kernel", "bias"}
OTHER_MODEL = re.compile(r"target|teacher|ema\b|ema_|_ema|shadow|averag|slow|momentum_enc|key_enc", re.IGNORECASE)
"""Functions that create a model from another one that is not trained."""


def moved(reading: Reading, where: Flow) -> Iterator[cst.CSTNode]:
    """Yield places that set weights to values computed from weights, or slots to anything."""
    for call in reading.tree.all(cst.Call):
        name, values = called(reading, call), [argument.value for argument in call.args]
        variable: cst.CSTNode | None = None
        if ASSIGNS.match(name) and isinstance(call.func, cst.Attribute) and not reading.names.of(call.func):
            variable = call.func.value
        elif ASSIGNS_FIRST.match(name) and values:
            variable, values = values[0], values[1:]
        elif name == "set_weights" and isinstance(call.func, cst.Attribute) and values:
            if not OTHER_MODEL.search(reading.text(call.func)) and _is_computed_from_weights(values[0], where):
                yield call
            continue
        if variable is None or (not values and not name.endswith(("_add", "_sub"))):
            continue
        origins = [variable, *where.values(_base(variable))]
        if any(map(where.holds_slots, origins)):
            yield call
        elif any(map(_is_trained, origins)) and not any(OTHER_MODEL.search(reading.text(origin)) for origin in origins):
            itself = reading.text(variable)
            if name.endswith(("_add", "_sub")) or any(reading.text(n) == itself for v in values for n in walk(v)):
                yield call


def _base(node: cst.CSTNode) -> str:
    return last(node.value if isinstance(node, cst.Subscript) else node)


def _is_trained(node: cst.CSTNode) -> bool:
    return any(isinstance(part, cst.Attribute) and last(part) in TRAINED for part in walk(node))


def _is_computed_from_weights(node: cst.CSTNode, where: Flow) -> bool:
    comprehensions = [
        value for value in (node, *where.values(last(node))) if isinstance(value, (cst.ListComp, cst.GeneratorExp))
    ]
    sources = [
        v
        for comprehension in comprehensions
        if not isinstance(comprehension.elt, cst.Name)
        for v in _followed(comprehension.for_in.iter, where)
    ]
    return any(isinstance(part, cst.Attribute) and last(part) == "get_weights" for v in sources for part in walk(v))


def _followed(node: cst.BaseExpression, where: Flow) -> list[cst.BaseExpression]:
    return [node, *where.values(last(node))]
