"""What a graph says of the updates that Keras built before OptimizerV2, besides whose slots they read: constants.

A rule of `keras/optimizers.py` 1.0 - 2.3 (and tf.keras's until 1.13) is an expression of slots, settings, which are
variables, and epsilon, which is a constant; SGD's has another form with Nesterov's momentum. Whatever is not one of
these, op for op, as a weight with a constraint is not, says nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from migrate.graphs.gradients import ROWS_ADDED
from migrate.graphs.nodes import Nodes
from migrate.graphs.patterns import ADD, DIVIDE, Anything, Found, Pattern, Variable, match
from migrate.graphs.writers import alone_written

_ANY = Anything()
_WITH_EPSILON = (ADD, _ANY, "epsilon")
_ROOT = ("Sqrt", ("Maximum", ("Minimum", _WITH_EPSILON, _ANY), _ANY))
_MOVED = "moved"
_OF_TABLES = (ROWS_ADDED, "AddN")
"""Ops that `tf.gradients` and Keras add rows up with, and those of a regularizer to them."""


def describe(
    nodes: Nodes, trained: Sequence[str], slots: Sequence[str], others: Collection[str] = ()
) -> tuple[dict[str, Any], str]:
    """`epsilon` or `nesterov` of the updates of these variables, and the limits that gradients go through on their way
    into these slots; none where they do not all say the same. And a node that gradients go through before these limits,
    as where a class has `get_gradients` of its own; empty if there is none.

    Args:
      others: state of other optimizers, or of an earlier `compile`, whose updates are left aside.
    """
    assigned = {name: write.value for name, write in alone_written(nodes, others).items()}
    said = [_update(nodes, name, assigned) for name in trained]
    told = said[0] if said and all(each == said[0] for each in said) else {}
    found = [_limits(nodes, gradient) for gradient in _gradients(nodes, slots, assigned)]
    limits = found[0][0] if found and all(each == found[0][0] for each, _ in found) else {}
    return {**told, **limits}, next((made for _, made in found if _is_changed(nodes, made)), "")


def _is_changed(nodes: Nodes, made: str) -> bool:
    """Whether a node is made of gradients, and is neither one nor a sum of their rows."""
    is_made = any(map(nodes.is_gradient, nodes.behind(made, to_gradients=True)))
    return is_made and not nodes.is_gradient(made) and nodes.op(made) not in _OF_TABLES


def _gradients(nodes: Nodes, slots: Sequence[str], assigned: Mapping[str, str]) -> list[str]:
    """What the updates of slots take for gradients. Adadelta takes the square of its own step in the place of one."""
    gradients = [_gradient(nodes, slot, assigned[slot]) for slot in slots if slot in assigned]
    return [each for each in gradients if each is not None and not nodes.variables_behind(each) & set(slots)]


_GRADIENT = Anything("gradient")


def _gradient(nodes: Nodes, slot: str, value: str) -> str | None:
    """What the update of a slot takes for the gradient, None where it is none of these updates."""
    own = Variable(slot)
    kept = ("Mul", _ANY, own)
    updates: tuple[Pattern, ...] = (
        (ADD, kept, ("Mul", _ANY, ("Square", _GRADIENT))),
        (ADD, kept, ("Mul", _ANY, _GRADIENT)),
        ("Sub", kept, ("Mul", _ANY, _GRADIENT)),
        (ADD, own, ("Square", _GRADIENT)),
    )
    for update in updates:
        found = Found()
        if match(nodes, value, update, found):
            return found.nodes["gradient"]
    return None


def _limits(nodes: Nodes, gradient: str) -> tuple[dict[str, float | None], str]:
    """`clipvalue`, and behind it `clipnorm`: norm >= c chooses gradient · c / norm (`clip_norm`); None for one that is
    not there, where what is clipped is what `tf.gradients` made. And the node that is clipped."""
    limits: dict[str, float | None] = {}
    found = Found()
    if match(nodes, gradient, ("Maximum", ("Minimum", _GRADIENT, "high"), "low"), found):
        if found.constants["low"] != -found.constants["high"]:
            return {}, gradient
        limits["clipvalue"], gradient = found.constants["high"], found.nodes["gradient"]
    found = Found()
    unclipped = ("Switch", _GRADIENT, ("GreaterEqual", ("Sqrt", _ANY), "clipnorm"))
    if match(nodes, gradient, ("Merge", unclipped, _ANY), found):
        limits["clipnorm"], gradient = found.constants["clipnorm"], found.nodes["gradient"]
    gradient = nodes.source(gradient)
    is_whole = nodes.is_gradient(gradient)
    return {"clipnorm": None, "clipvalue": None, **limits} if is_whole else limits, gradient


def _update(nodes: Nodes, name: str, assigned: Mapping[str, str]) -> dict[str, Any]:
    variable, value = Variable(name), assigned.get(name)
    if value is None:
        return {}
    rules: tuple[Pattern, ...] = (
        ("Sub", variable, (DIVIDE, _ANY, _WITH_EPSILON)),
        ("Sub", variable, ("Mul", _ANY, (DIVIDE, ("Mul", _ANY, _ROOT), _ROOT))),
    )
    for rule in rules:
        found = Found()
        if match(nodes, value, rule, found):
            return dict(found.constants)
    moves = (
        ((ADD, variable, Anything(_MOVED)), False),
        (("Sub", (ADD, variable, ("Mul", _ANY, Anything(_MOVED))), _ANY), True),
    )
    for pattern, nesterov in moves:
        found = Found()
        if match(nodes, value, pattern, found) and found.nodes[_MOVED] in assigned.values():
            return {"nesterov": nesterov}
    return {}
