"""What a graph says of google-research/bert's AdamWeightDecayOptimizer, which is built of plain ops and no kernel.

w ← w − rate · (m' / (√v' + ε) [+ λ·w]), m' = β₁·m + (1 − β₁)·g, v' = β₂·v + (1 − β₂)·g² (`optimization.py`). Each
variable's three assignments must be these, op for op; else nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from migrate.algorithms.addons import BERT
from migrate.graphs import schedules
from migrate.graphs.gradients import ROWS_ADDED, Gradients
from migrate.graphs.nodes import Nodes, Write
from migrate.graphs.patterns import ADD, DIVIDE, Anything, Found, Pattern, Variable, match
from migrate.graphs.sparse_rows import rows_apart
from migrate.graphs.tf_train import Trained
from migrate.graphs.writers import alone_written, other_writer

RATE, DECAY = "learning_rate", "weight_decay_rate"
SLOTS = ("adam_m", "adam_v")
_SQUARED, _GRADIENT, _M, _V = "squared", "gradient", "next_m", "next_v"
_RESTS = {"beta_1": "rest_1", "beta_2": "rest_2"}


def describe(nodes: Nodes, owners: Collection[str]) -> Trained:
    """What the updates of BERT's optimizer say.

    Args:
      owners: the variables that have its slots.
    """
    assigned = alone_written(nodes)
    updates = {name: _update(nodes, name, assigned) for name in owners}
    strange = next((name for name, each in updates.items() if each is None), None)
    if strange is not None or not updates:
        return Trained(outside={"optimizer": f"{strange} is not updated as by BERT's {BERT}"} if updates else {})
    known = {name: each for name, each in updates.items() if each is not None}
    decays = {name: each.constants.pop(DECAY) for name, each in known.items() if DECAY in each.constants}
    settings = [each.constants for each in known.values()]
    outside: dict[str, str] = {}
    gradients = Gradients(nodes, known)
    limits = {gradients.clipping(n, _slices(nodes, each.nodes[_GRADIENT]), outside) for n, each in known.items()}
    rates = {each.nodes[RATE] for each in known.values()}
    if any(each != settings[0] for each in settings) or max(len(set(decays.values())), len(limits), len(rates)) > 1:
        return Trained(outside={**outside, "optimizer": "variables are not all updated with the same settings"})
    config: dict[str, Any] = {key: _said(v) for key, v in settings[0].items() if key not in _RESTS.values()}
    for beta, rest in _RESTS.items():
        if np.float32(1.0 - config[beta]) != np.float32(settings[0][rest]):
            outside[beta] = f"the gradient is not weighted with 1 - {beta} in the graph"
    config[DECAY] = _said(next(iter(decays.values()))) if decays else 0.0
    config["exclude_from_weight_decay"] = [f"^{re.escape(name)}(:0)?$" for name in owners if name not in decays]
    config |= _rate(nodes, rates.pop(), outside)
    limit = limits.pop()
    config |= {limit[0]: limit[1]} if limit is not None else {}
    other = other_writer(nodes, frozenset(owners), {assigned[name].op for name in owners})
    if other is not None:
        outside["updates"] = other
    sparse = frozenset(name for name, each in known.items() if nodes.op(each.nodes[_GRADIENT]) == ROWS_ADDED)
    seen = not outside
    config |= rows_apart(config, sparse, gradients.added, outside)
    return Trained(BERT, config, sparse, outside, seen, frozenset(gradients.gathered))


def _said(number: float) -> float:
    """The number of a program, which its graph holds in float32."""
    return float(str(np.float32(number)))


def _rate(nodes: Nodes, name: str, outside: dict[str, str]) -> Mapping[str, Any]:
    number = nodes.constant(name)
    found = schedules.read(nodes, name) if number is None else number
    text = f"{name!r} ({nodes.op(name)}) in the graph makes it" if found is None else ""
    text = text or (schedules.never_counts(nodes) if number is None else "")
    if text:
        outside[RATE] = text
    return {} if text else {RATE: found}


def _update(nodes: Nodes, name: str, assigned: Mapping[str, Write]) -> Found | None:
    """Settings, gradient and learning rate of a variable's update, None where it is another."""
    slots = [f"{name}/{slot}" for slot in SLOTS]
    if any(each not in assigned for each in (name, *slots)):
        return None
    step: Pattern = (DIVIDE, Anything(_M), (ADD, ("Sqrt", Anything(_V)), "epsilon"))
    for direction in (step, (ADD, step, ("Mul", DECAY, Variable(name)))):
        found = Found()
        if match(nodes, assigned[name].value, ("Sub", Variable(name), ("Mul", Anything(RATE), direction)), found):
            break
    else:
        return None
    first = (ADD, ("Mul", "beta_1", Variable(slots[0])), ("Mul", "rest_1", Anything(_GRADIENT)))
    second = (ADD, ("Mul", "beta_2", Variable(slots[1])), ("Mul", "rest_2", ("Square", Anything(_SQUARED))))
    fits = match(nodes, found.nodes[_M], first, found) and match(nodes, found.nodes[_V], second, found)
    stored = [nodes.source(assigned[each].value) for each in slots] == [found.nodes[_M], found.nodes[_V]]
    return found if fits and stored and _is_one(nodes, found.nodes[_GRADIENT], found.nodes[_SQUARED]) else None


def _slices(nodes: Nodes, gradient: str) -> str:
    """The values of a sparse gradient, which are clipped before it is made dense; of others the gradient itself."""
    return nodes.parents(gradient)[0] if nodes.op(gradient) == ROWS_ADDED else gradient


def _is_one(nodes: Nodes, gradient: str, squared: str) -> bool:
    """Whether two nodes are one gradient; a sparse one is made dense wherever it is used."""
    sums = [nodes.op(each) for each in (gradient, squared)] == [ROWS_ADDED] * 2
    return gradient == squared or (sums and nodes.parents(gradient)[:2] == nodes.parents(squared)[:2])
