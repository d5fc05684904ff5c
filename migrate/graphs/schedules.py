"""Recognise learning-rate schedules that a program built into its graph, op by op, and express them in Keras's terms.

`tf.train.*_decay` are expressions of the global step and of constants (training/learning_rate_decay.py 1.0 - 1.15), and
so is the warm-up of google-research/bert (`optimization.py`, `create_optimizer`). Any other schedule is migrated as a
formula. Names are never used as evidence.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from migrate.graphs import choices, formulas
from migrate.graphs.nodes import WRITES, Nodes
from migrate.graphs.patterns import ADD, DIVIDE, STEP, Anything, Captures, Pattern, match
from migrate.graphs.writers import writers
from migrate.state import GLOBAL_STEP, MOVING

_PERIODS = (DIVIDE, STEP, "decay_steps")
_CAPPED = (DIVIDE, ("Minimum", STEP, "decay_steps"), "decay_steps")
_HALF_COSINE = ("Mul", 0.5, (ADD, 1.0, ("Cos", ("Mul", float(np.float32(math.pi)), _CAPPED))))
_IS_WARMING = ("Less", STEP, "warmup_steps")
_RISING = ("Mul", "warm_rate", (DIVIDE, STEP, "warmup_steps")), (DIVIDE, ("Mul", "warm_rate", STEP), "warmup_steps")
_WARMED = (
    *((ADD, ("Mul", ("Sub", 1.0, _IS_WARMING), Anything("then")), ("Mul", _IS_WARMING, r)) for r in _RISING),
    ("Select SelectV2", _IS_WARMING, Anything(), Anything("then")),
)


def _with_staircase(periods_to_pattern: Any) -> tuple[tuple[Pattern, bool], ...]:
    return (periods_to_pattern(_PERIODS), False), (periods_to_pattern(("Floor", _PERIODS)), True)


_EXPONENTIAL = _with_staircase(lambda p: ("Mul", "initial_learning_rate", ("Pow", "decay_rate", p)))
_INVERSE_TIME = _with_staircase(lambda p: (DIVIDE, "initial_learning_rate", (ADD, 1.0, ("Mul", "decay_rate", p))))
_POLYNOMIAL = (
    ADD,
    ("Mul", ("Sub", "initial_learning_rate", "end_learning_rate"), ("Pow", ("Sub", 1.0, _CAPPED), "power")),
    "end_learning_rate",
)
_COSINE = ("Mul", "initial_learning_rate", (ADD, ("Mul", "rest", _HALF_COSINE), "alpha"))


def read(nodes: Nodes, name: str) -> Mapping[str, Any] | float | None:
    """Return the schedule of a node as `{"class_name", "config"}`, a number if it is constant after its warm-up, or
    None if it is neither a schedule of Keras nor a formula of the step."""
    name = _warmed_up(nodes, name)
    number = nodes.constant(name)
    if number is not None:
        return number
    for class_name, patterns in (("ExponentialDecay", _EXPONENTIAL), ("InverseTimeDecay", _INVERSE_TIME)):
        for pattern, staircase in patterns:
            constants = _constants(nodes, name, pattern)
            if constants:
                return _schedule(class_name, constants, staircase=staircase)
    constants = _constants(nodes, name, _POLYNOMIAL)
    if constants:
        return _schedule("PolynomialDecay", constants, cycle=False)
    constants = _constants(nodes, name, _COSINE)
    if constants and abs(constants.pop("rest") - (1.0 - constants["alpha"])) < 1e-6:
        return _schedule("CosineDecay", constants)
    pieces = choices.read(nodes, name)
    if pieces is not None:
        return _schedule("PiecewiseConstantDecay", pieces)
    operations = formulas.read(nodes, name)
    return _schedule("Formula", {"operations": operations}) if isinstance(operations, list) else operations


def moving(nodes: Nodes, key: str, names: Iterable[str], changed: Collection[str], how: str) -> dict[str, str]:
    """Report a hyperparameter that depends on what steps change, so that no number is right; else return {}.

    Args:
      names: its nodes. changed: the variables that steps change. how: the report's text in all cases.
    """
    ancestors = {ancestor for name in names for ancestor in nodes.ancestors(name, with_choices=True)}
    return {} if ancestors.isdisjoint(changed) else {MOVING + key: f"{key}: {how}"}


def never_counts(nodes: Nodes, kernels: Collection[str] = (), among: Collection[str] | None = None) -> str:
    """Explain why the global step is not the number of an optimizer's steps, so that a schedule of it stops or runs
    ahead; empty if it is.

    Args:
      kernels: ops of the step; the global step must wait for all of them.
      among: the global step must be raised by one of these ops, if the optimizer is not alone or applies gradients in
        several places.
    """
    counts = (lambda name: name == nodes.counter) if nodes.counter else (lambda name: name.endswith(GLOBAL_STEP))
    raised = [op for op, variable in writers(nodes) if counts(variable)]
    if len(raised) != 1:
        times = "twice" if raised else "nowhere"
        return f"the graph raises the global step, which the schedule reads, {times}"
    op, inputs = raised[0], nodes.inputs[raised[0]]
    one: Pattern = 1.0 if nodes.op(op).startswith("AssignAdd") else (ADD, STEP, 1.0)
    always = nodes.op(op) in WRITES and counts(inputs[0])  # and not in a `tf.cond` or a loop
    if not always or not match(nodes, inputs[1], one, Captures()):
        return f"{op!r} raises the global step, which the schedule reads, by another amount than one"
    if not nodes.waits_for(op).issuperset(kernels):
        return f"{op!r} raises the global step, which the schedule reads, and does not wait for all of the step"
    if any(nodes.branches.get(op) != nodes.branches.get(kernel) for kernel in kernels):
        return f"{op!r} raises the global step, which the schedule reads, at other steps than variables are updated"
    if among is not None and op not in among:
        return f"{op!r} raises the global step, which the schedule reads, and others may update the variables too"
    return ""


def _schedule(class_name: str, config: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    return {"class_name": class_name, "config": {**config, **options}}


def _warmed_up(nodes: Nodes, name: str) -> str:
    """The rate after a warm-up that is over. BERT's `create_optimizer` adds both, other programs use `tf.where`."""
    counter = nodes.counter or next((variable for variable in nodes.changing if variable.endswith(GLOBAL_STEP)), "")
    steps, _ = nodes.changing.get(counter, (0.0, ""))
    captures = next((f for pattern in _WARMED if match(nodes, name, pattern, f := Captures())), None)
    return captures.nodes["then"] if captures is not None and steps >= captures.constants["warmup_steps"] else name


def _constants(nodes: Nodes, name: str, pattern: Pattern) -> dict[str, float]:
    captures = Captures()
    return captures.constants if match(nodes, name, pattern, captures) else {}
