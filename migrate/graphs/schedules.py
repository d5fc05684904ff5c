"""Learning-rate schedules that a program built into its graph, recognised op by op, in Keras's terms.

`tf.train.*_decay` are expressions of the global step and of constants (training/learning_rate_decay.py 1.0 - 1.15), and
so is the warm-up of google-research/bert (`optimization.py`, `create_optimizer`). What is not one of these, op for op,
is no schedule here: nothing is concluded from names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from migrate.graphs import choices
from migrate.graphs.nodes import Nodes
from migrate.graphs.patterns import ADD, DIVIDE, STEP, Anything, Found, Pattern, match

WARM_UP = "WarmUp"
"""What tf-models calls a schedule that rises to another one's start, and then is that one."""
_PERIODS = (DIVIDE, STEP, "decay_steps")
_CAPPED = (DIVIDE, ("Minimum", STEP, "decay_steps"), "decay_steps")
_HALF_COSINE = ("Mul", 0.5, (ADD, 1.0, ("Cos", ("Mul", float(np.float32(math.pi)), _CAPPED))))
_IS_WARMING = ("Less", STEP, "warmup_steps")
_RISING = ("Mul", "warm_rate", (DIVIDE, STEP, "warmup_steps")), (DIVIDE, ("Mul", "warm_rate", STEP), "warmup_steps")
_WARMED = (
    *((ADD, ("Mul", ("Sub", 1.0, _IS_WARMING), Anything("cooled")), ("Mul", _IS_WARMING, r)) for r in _RISING),
    *(("Select SelectV2", _IS_WARMING, rising, Anything("cooled")) for rising in _RISING),
)


def _with_staircase(periods_to_pattern: Any) -> tuple[tuple[Pattern, bool], ...]:
    return (periods_to_pattern(_PERIODS), False), (periods_to_pattern(("Floor", _PERIODS)), True)


_EXPONENTIAL = _with_staircase(lambda p: ("Mul", "initial_learning_rate", ("Pow", "decay_rate", p)))
_INVERSE_TIME = _with_staircase(lambda p: (DIVIDE, "initial_learning_rate", (ADD, 1.0, ("Mul", "decay_rate", p))))
_POLYNOMIAL = (
    ADD,
    (
        "Mul",
        ("Sub", "initial_learning_rate", "end_learning_rate"),
        ("Pow", ("Sub", 1.0, _CAPPED), "power"),
    ),
    "end_learning_rate",
)
_COSINE = ("Mul", "initial_learning_rate", (ADD, ("Mul", "rest", _HALF_COSINE), "alpha"))


def read(nodes: Nodes, name: str) -> Mapping[str, Any] | None:
    """The schedule that a node is, as `{"class_name", "config"}`, None where it is none of those known."""
    for class_name, patterns in (("ExponentialDecay", _EXPONENTIAL), ("InverseTimeDecay", _INVERSE_TIME)):
        for pattern, staircase in patterns:
            found = _constants(nodes, name, pattern)
            if found:
                return _schedule(class_name, found, staircase=staircase)
    found = _constants(nodes, name, _POLYNOMIAL)
    if found:
        return _schedule("PolynomialDecay", found, cycle=False)
    found = _constants(nodes, name, _COSINE)
    if found and abs(found.pop("rest") - (1.0 - found["alpha"])) < 1e-6:
        return _schedule("CosineDecay", found)
    pieces = choices.read(nodes, name)
    return _schedule("PiecewiseConstantDecay", pieces) if pieces is not None else _warm_up(nodes, name)


def never_counts(nodes: Nodes) -> str:
    """Why the global step is not the number of steps, so that a schedule of it stood still or ran; empty if it is."""
    counts = (lambda name: name == nodes.counter) if nodes.counter else (lambda name: name.endswith("global_step"))
    raised = [write for write in nodes.writes() if counts(write.target)]
    if len(raised) != 1:
        return f"the graph raises the global step, which the schedule reads, {'nowhere' if not raised else 'twice'}"
    op, by = raised[0].op, raised[0].value
    adds = nodes.op(op).startswith("AssignAdd") and nodes.constant(by) == 1.0
    if adds or match(nodes, by, (ADD, STEP, 1.0), Found()):
        return ""
    return f"{op!r} raises the global step, which the schedule reads, otherwise than by one"


def after(rate: Any, step: int) -> Any:
    """A learning rate as it is from a step on: without its warm-up once that is over."""
    if isinstance(rate, Mapping) and rate["class_name"] == WARM_UP and step >= rate["config"]["warmup_steps"]:
        return rate["config"]["decay_schedule_fn"]
    return rate


def _schedule(class_name: str, found: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    return {"class_name": class_name, "config": {**found, **options}}


def _warm_up(nodes: Nodes, name: str) -> dict[str, Any] | None:
    """`rate`, and initial · step / warmup_steps before; BERT's `create_optimizer` has a sum, others `tf.where`."""
    found = next((f for pattern in _WARMED if match(nodes, name, pattern, f := Found())), None)
    if found is None:
        return None
    cooled, start = found.nodes["cooled"], found.constants["warm_rate"]
    number = nodes.constant(cooled)
    rate: Any = read(nodes, cooled) if number is None else number
    if rate is None or start != (rate["config"]["initial_learning_rate"] if isinstance(rate, Mapping) else rate):
        return None
    steps = int(found.constants["warmup_steps"])
    config = {"initial_learning_rate": start, "decay_schedule_fn": rate, "warmup_steps": steps}
    return {"class_name": WARM_UP, "config": {**config, "power": 1.0}}


def _constants(nodes: Nodes, name: str, pattern: Pattern) -> dict[str, float]:
    """The constants of a node that is this expression, empty where it is another."""
    found = Found()
    return found.constants if match(nodes, name, pattern, found) else {}
