"""Read the updates that Keras built before OptimizerV2: the rule with its constants, and changes of the gradients.

Settings are variables, which the checkpoint stores. A rule with one different op is a custom rule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from migrate.graphs import constraints
from migrate.graphs.clipping import clipped
from migrate.graphs.fit import RATE
from migrate.graphs.identify import Identifier, Identity
from migrate.graphs.nodes import ROWS_ADDED, Nodes
from migrate.graphs.patterns import ADD, DIVIDE, Anything, Captures, Cast, Either, Pattern, Variable, match
from migrate.graphs.rule_configs import class_of_rule
from migrate.graphs.writers import alone_written, changers, rewritten
from migrate.releases.recognition import UPDATES_OF_PLAIN_OPS
from migrate.state import CHANGED, NO_KERNEL

_ANY = Anything()
_CALLED = {"lr": "learning_rate", "m_schedule": "u_product"}
_COUNTING = ("iterations", "m_schedule")
"""Scalar variables that an optimizer's step changes."""
_OF_TABLES = (ROWS_ADDED, "AddN")
"""Ops with which `tf.gradients` and Keras add up rows, and add a regularizer's gradient."""


class _Rule(NamedTuple):
    """The rule of one variable: a class, the part of its config that the graph contains, and its gradient."""

    class_name: str
    config: Mapping[str, Any]
    gradients: tuple[str, ...]
    is_constrained: bool


class Updates(NamedTuple):
    """`class_name`: empty if the graph does not show one. `outside`, `constrained`: as in `Stored`."""

    class_name: str
    config: dict[str, Any]
    outside: dict[str, str]
    constrained: frozenset[str]


def describe(
    nodes: Nodes,
    settings: Mapping[str, str],
    trained: Sequence[str],
    slots: Sequence[str],
    *,
    others: Collection[str],
    is_of_all: bool,
) -> Updates:
    """Read the updates of these variables, as far as they agree.

    Args:
      settings: the optimizer's scalar variables by the name of the setting.
      trained: variables that may be trained; those are used that gradients or slots change.
      others: state of other optimizers, or of an earlier `compile`, whose updates are ignored.
      is_of_all: whether the release's `clipnorm` limits one norm over all gradients.
    """
    changed_by = changers(nodes, others)
    written = alone_written(nodes, changed_by)
    assigned = {name: write.value for name, write in written.items()}
    moved = [name for name in trained if name in assigned and _depends_on_training(nodes, assigned[name], slots)]
    identifier = Identifier(nodes, {name: [write] for name, write in written.items()})
    rules = {name: _rule(nodes, settings, name, assigned[name], identifier) for name in moved}
    moving = {name: rule for name, rule in rules.items() if rule is not None}
    steps = list(moving.values())
    same = bool(steps) and all((r.class_name, r.config) == (steps[0].class_name, steps[0].config) for r in steps)
    variables = {_CALLED.get(key, key): variable for key, variable in settings.items() if key not in _COUNTING}
    outside = rewritten(nodes, variables, [written[name].op for name in moved])
    custom = next((name for name, rule in rules.items() if rule is None), None)
    if custom is not None:
        outside[NO_KERNEL] = (
            f"{written[custom].op!r} updates {custom!r} in the graph by a custom rule that Keras does not have"
        )
    several = next((changed_by[name] for name in trained if len(changed_by.get(name, ())) > 1), None)
    if several is not None:
        outside["updates"] = f"{several[-1]!r} changes a variable that {several[0]!r} changes too"
    owners = {gradient: name for name, rule in moving.items() for gradient in rule.gradients}
    clippings = [_limits(nodes, owner, gradient, is_of_all) for gradient, owner in owners.items()]
    limits = clippings[0][0] if clippings and all(other == clippings[0][0] for other, _ in clippings) else {}
    changed = next((source for _, source in clippings if _is_changed(nodes, source)), "")
    if changed:
        outside[CHANGED] = f"gradients pass through {changed!r} before they reach the optimizer"
    config = {**(steps[0].config if same else {}), **limits}
    bound = frozenset(name for name, rule in moving.items() if rule.is_constrained)
    return Updates(steps[0].class_name if same and custom is None else "", config, outside, bound)


def _rule(nodes: Nodes, settings: Mapping[str, str], name: str, value: str, identifier: Identifier) -> _Rule | None:
    """The rule of a variable, None unless Keras has it and it uses the optimizer's settings. A constraint may follow.

    Args:
      settings: the optimizer's scalar variables by the name of the setting.
    """
    moved = constraints.moved_before(nodes, value)
    for end in (moved, "") if moved else ("",):
        rule_class = class_of_rule(identifier.of(name, end), UPDATES_OF_PLAIN_OPS)
        numbers = None if rule_class is None else _constant_hyperparameters(nodes, settings, rule_class[2])
        if rule_class is not None and numbers is not None:
            return _Rule(rule_class[0], {**numbers, **rule_class[1]}, rule_class[2].gradient, bool(end))
    return None


def _constant_hyperparameters(nodes: Nodes, settings: Mapping[str, str], identity: Identity) -> dict[str, Any] | None:
    variables = {_CALLED.get(key, key): variable for key, variable in settings.items()}
    numbers: dict[str, Any] = {}
    for key, scalar in reversed(list(identity.hyper.items())):
        if key == RATE and not match(nodes, scalar.output, _decayed_rate(settings), Captures()):
            return None
        if key == RATE or (
            key in variables and not scalar.is_derived and nodes.source(scalar.output) == variables[key]
        ):
            continue
        if key in variables or scalar.number is None:
            return None
        numbers[key] = float(np.float32(scalar.number))
    is_counted = identity.step is None or nodes.source(identity.step[0]) == settings.get("iterations")
    return numbers if is_counted and not identity.decays else None


def _decayed_rate(settings: Mapping[str, str]) -> Pattern:
    rate, decay, steps = (Variable(settings.get(key, "")) for key in ("lr", "decay", "iterations"))
    if "lr" not in settings:
        rate = Variable(settings.get(RATE, ""))
    decayed = (DIVIDE, 1.0, (ADD, 1.0, ("Mul", decay, Either(steps, Cast(steps)))))
    return Either(rate, ("Mul", rate, decayed))


def _depends_on_training(nodes: Nodes, value: str, slots: Collection[str]) -> bool:
    return nodes.has_gradients(value) or not nodes.variables_of(value).isdisjoint(slots)


def _is_changed(nodes: Nodes, source: str) -> bool:
    """Whether a node is neither a gradient, nor a sum of its rows, nor a variable that accumulates it."""
    return not nodes.is_gradient(source) and nodes.op(source) not in _OF_TABLES


_GRADIENT = Anything("gradient")


def _limits(nodes: Nodes, owner: str, gradient: str, is_of_all: bool) -> tuple[dict[str, float | None], str]:
    """Return `clipvalue` and then `clipnorm`, each None if absent, and the node that is clipped. The limits are empty
    unless `tf.gradients` made that node.

    Args:
      owner: a variable of the gradient's shape.
      is_of_all: whether the release limits one norm over all gradients, not each: norm >= c chooses
        gradient * c / norm (`clip_norm`).
    """
    limits: dict[str, float | None] = {}
    gradient = _added_rows(nodes, gradient)
    clip = clipped(nodes, gradient)
    if clip is not None and clip.option == "clipvalue":
        limits["clipvalue"], gradient = clip.limit, _added_rows(nodes, clip.gradient)
        clip = clipped(nodes, gradient)
    captures = Captures()
    unclipped = ("Switch", _GRADIENT, ("GreaterEqual", ("Sqrt", _ANY), "clipnorm"))
    if is_of_all and match(nodes, gradient, ("Merge", unclipped, _ANY), captures):
        limits["clipnorm"], gradient = captures.constants["clipnorm"], captures.nodes["gradient"]
    elif not is_of_all and clip is not None and clip.is_of_one(nodes, owner):
        limits["clipnorm"], gradient = clip.limit, clip.gradient
    gradient = nodes.source(_added_rows(nodes, gradient))
    return {"clipnorm": None, "clipvalue": None, **limits} if nodes.is_gradient(gradient) else limits, gradient


def _added_rows(nodes: Nodes, gradient: str) -> str:
    return nodes.inputs[gradient][0] if nodes.op(gradient) == ROWS_ADDED else gradient
