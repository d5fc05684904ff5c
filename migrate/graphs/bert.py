"""What a graph says of google-research/bert's AdamWeightDecayOptimizer, which is built of plain ops and no kernel.

w ← w − rate · (m' / (√v' + ε) [+ λ·w]), m' = β₁·m + (1 − β₁)·g, v' = β₂·v + (1 − β₂)·g² (`optimization.py`). Each
variable must move by this rule; otherwise nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from migrate.algorithms.addons import BERT
from migrate.graphs import schedules
from migrate.graphs.gradients import ROWS_ADDED, Gradients
from migrate.graphs.identify import DECAY, RATE, Identifier, Identity
from migrate.graphs.nodes import Nodes
from migrate.graphs.sparse_rows import rows_apart
from migrate.graphs.tf_train import Trained
from migrate.graphs.writers import alone_written, other_writer
from optim.rules.adam import AdamRule

SLOTS = ("adam_m", "adam_v")
_RULE = AdamRule(bias_correction=False)
_SETTINGS = ("epsilon", "beta_1", "beta_2")


def describe(nodes: Nodes, owners: Collection[str]) -> Trained:
    """What the updates of BERT's optimizer say.

    Args:
      owners: the variables that have its slots.
    """
    assigned = alone_written(nodes)
    identifier = Identifier(nodes, {name: [write] for name, write in assigned.items()})
    known = {name: found for name in owners if (found := _update(identifier, name)) is not None}
    strange = next((name for name in owners if name not in known), None)
    if strange is not None or not known:
        return Trained(outside={"optimizer": f"{strange} is not updated as by BERT's {BERT}"} if strange else {})
    decays = {name: each.hyper[DECAY].number for name, each in known.items() if DECAY in each.hyper}
    settings = [{key: each.hyper[key].number for key in _SETTINGS} for each in known.values()]
    taken = {name: each.gradient[0] for name, each in known.items()}
    outside: dict[str, str] = {}
    gradients = Gradients(nodes, known)
    limits = {gradients.clipping(name, _slices(nodes, each), outside) for name, each in taken.items()}
    rates = {nodes.source(each.hyper[RATE].output) for each in known.values()}
    if any(each != settings[0] for each in settings) or max(len(set(decays.values())), len(limits), len(rates)) > 1:
        return Trained(outside={**outside, "optimizer": "variables are not all updated with the same settings"})
    config: dict[str, Any] = dict(settings[0])
    config["weight_decay_rate"] = next(iter(decays.values()), 0.0)
    config["exclude_from_weight_decay"] = [f"^{re.escape(name)}(:0)?$" for name in owners if name not in decays]
    config |= _rate(nodes, rates.pop(), outside)
    limit = limits.pop()
    config |= {limit[0]: limit[1]} if limit is not None else {}
    other = other_writer(nodes, frozenset(owners), {assigned[name].op for name in owners})
    if other is not None:
        outside["updates"] = other
    sparse = frozenset(name for name, each in taken.items() if nodes.op(each) == ROWS_ADDED)
    seen = not outside
    config |= rows_apart(config, sparse, gradients.added, outside)
    return Trained(BERT, config, sparse, outside, seen, frozenset(gradients.gathered))


def _rate(nodes: Nodes, name: str, outside: dict[str, str]) -> Mapping[str, Any]:
    number = nodes.constant(name)
    found = schedules.read(nodes, name) if number is None else number
    text = f"{name!r} ({nodes.op(name)}) in the graph makes it" if found is None else ""
    text = text or (schedules.never_counts(nodes) if number is None else "")
    if text:
        outside[RATE] = text
    return {} if text else {RATE: found}


def _update(identifier: Identifier, name: str) -> Identity | None:
    """How a variable is updated, None unless it's by the rule of BERT, with constants for all but the rate."""
    found = identifier.of(name)
    if len(found) != 1 or _RULE not in found[0].rules or found[0].decays == "step":
        return None
    identity = found[0]
    constants = [scalar.number for key, scalar in identity.hyper.items() if key != RATE]
    slots = {slot: f"{name}/{key}" for slot, key in zip(("m", "v"), SLOTS, strict=True)}
    rate = identity.hyper[RATE]
    is_known = None not in constants and identity.hyper.keys() >= {*_SETTINGS} and not rate.is_rest and rate.output
    return identity if is_known and dict(identity.slots) == slots else None


def _slices(nodes: Nodes, gradient: str) -> str:
    """The values of a sparse gradient, which are clipped before it is made dense; of others the gradient itself."""
    return nodes.parents(gradient)[0] if nodes.op(gradient) == ROWS_ADDED else gradient
