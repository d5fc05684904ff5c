"""Read an optimizer that a program of TensorFlow 1 builds of plain ops, without a kernel.

Examples are google-research/bert's AdamWeightDecayOptimizer (`optimization.py`) and an Adam written with `tf.assign`.
All variables must follow one rule of `optim` with the same numbers; or nothing is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from migrate.algorithms.addons import BERT
from migrate.algorithms.tf_train import CLASSES, OBJECT_SLOTS
from migrate.graphs import schedules
from migrate.graphs.fit import DECAY, RATE, Scalar
from migrate.graphs.gradients import Gradients
from migrate.graphs.identify import Identifier, Identity
from migrate.graphs.late_reads import ancestors, before, late_read
from migrate.graphs.nodes import ROWS_ADDED, Nodes
from migrate.graphs.rule_configs import class_of_rule
from migrate.graphs.sparse_rows import rows_apart
from migrate.graphs.tf_train import Trained
from migrate.graphs.writers import alone_written, changers, other_writer
from migrate.releases.recognition import SLOTS_NAMED_AFTER_CLASSES
from migrate.state import LATE_READ
from optim.rules.adam import AdamRule

BERTS_SLOTS = {"m": "adam_m", "v": "adam_v"}
_BERTS_RULE = AdamRule(bias_correction=False)


@dataclass(frozen=True)
class Plain:
    """An optimizer of plain ops.

    Attributes:
      trained: as for kernels. owners: the variables that it trains. slots: variables by owner, by the class's slot
        names.
      counter: the variable that counts the steps; may be empty. ahead: how far it exceeds the steps made.
      needs_count: whether the rule reads it.
      powers: variables that store powers, by hyperparameter. multiplies_first: whether a step multiplies them before it
        reads them.
    """

    trained: Trained
    owners: frozenset[str] = frozenset()
    slots: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    counter: str = ""
    ahead: float = 0.0
    needs_count: bool = False
    powers: Mapping[str, str] = field(default_factory=dict)
    multiplies_first: bool = False


def of_bert(nodes: Nodes, owners: Collection[str]) -> Trained:
    """Read the updates of BERT's optimizer. `owners` are the variables that have its slots."""
    identities = _identified(nodes, owners)
    strange = next((name for name in owners if name not in identities or not _is_berts(name, identities[name])), None)
    if strange is not None or not owners:
        return Trained(outside={"optimizer": f"{strange} is not updated like BERT's {BERT}"} if strange else {})
    return _described(nodes, identities, BERT, {}, ())


def of_program(nodes: Nodes, owners: Collection[str]) -> Plain | None:
    """Read the updates of a custom optimizer, None unless they follow a rule that can be migrated.

    Args:
      owners: the variables that may be trained.
    """
    by_variable = changers(nodes)
    written = alone_written(nodes, by_variable)
    moved = [name for name, ops in by_variable.items() if any(map(nodes.has_gradients, ops))]
    identities = _identified(nodes, [name for name in owners if name in written and name in moved])
    first = next(iter(identities.values()), None)
    kept = {slot for identity in identities.values() for slot in identity.slots.values()}
    others = by_variable.keys() & set(owners) | set(moved)
    if (
        first is None
        or others - kept != identities.keys()
        or any(not _is_alike(first, identity) for identity in identities.values())
    ):
        return None
    rule_class = class_of_rule([first], SLOTS_NAMED_AFTER_CLASSES, with_choices=True)
    if rule_class is None or rule_class[0] not in CLASSES.values() or first.decays:
        return None
    names = {slot: called for called, slot in reversed(OBJECT_SLOTS[rule_class[0]].items())}
    class_name = (
        "GradientDescentOptimizer" if not first.slots else _CALLED.get(rule_class[0], f"{rule_class[0]}Optimizer")
    )
    slots = {
        names[slot]: {owner: identity.slots[slot] for owner, identity in identities.items()} for slot in first.slots
    }
    ends = [written[v].op for owner, identity in identities.items() for v in (owner, *identity.slots.values())]
    counter = nodes.source(first.step[0]) if first.step is not None and first.step[0] else _counter(nodes, ends)
    nodes.counter = counter
    trained = _described(nodes, identities, class_name, rule_class[1], ends)
    state = [
        *(v for by_owner in slots.values() for v in by_owner.values()),
        *first.powers.values(),
        *([counter] if counter else []),
    ]
    text = _disorder(nodes, [*identities, *state])
    reasons = {"updates": text} if text else {}
    late = late_read(nodes, {written[owner].op: owner for owner in identities}, {})
    reasons |= {LATE_READ: late} if late is not None else {}
    outside = {**trained.outside, **reasons}
    whole = replace(
        trained, sparse=frozenset(), outside=outside, seen=trained.seen and not text
    )  # rows are updated like others
    needs_count = first.step is not None and bool(first.step[0])
    offset = first.step[1] if first.step is not None else 0.0
    ahead = 1.0 - offset if needs_count else 0.0
    return Plain(
        whole,
        frozenset(identities),
        slots,
        counter,
        ahead,
        needs_count,
        first.powers,
        not needs_count and offset == 1.0,
    )


_CALLED = {"SGD": "MomentumOptimizer", "RMSprop": "RMSPropOptimizer", "Adamax": "AdaMaxOptimizer"}


def _identified(nodes: Nodes, owners: Collection[str]) -> dict[str, Identity]:
    identifier = Identifier(nodes, {name: [write] for name, write in alone_written(nodes).items()})
    candidates = {name: identifier.of(name) for name in owners}
    identities = {name: matches[0] for name, matches in candidates.items() if len(matches) == 1}
    return {name: identity for name, identity in identities.items() if identity.hyper[RATE].output or identity.slots}


def _is_alike(one: Identity, other: Identity) -> bool:
    return (one.rules, one.slots.keys(), one.hyper.keys(), one.step, one.decays, dict(one.powers)) == (
        other.rules,
        other.slots.keys(),
        other.hyper.keys(),
        other.step,
        other.decays,
        dict(other.powers),
    )


def _is_berts(name: str, identity: Identity) -> bool:
    slots = {slot: f"{name}/{key}" for slot, key in BERTS_SLOTS.items()}
    is_complete = identity.hyper.keys() >= {"epsilon", "beta_1", "beta_2"}
    is_complete &= bool(identity.hyper[RATE].output)
    return _BERTS_RULE in identity.rules and identity.decays != "step" and dict(identity.slots) == slots and is_complete


def _counter(nodes: Nodes, ops: Collection[str]) -> str:
    """The variable that the step raises by one, empty unless there is exactly one."""
    raised = [
        write.target
        for write in alone_written(nodes).values()
        if nodes.op(write.op).startswith("AssignAdd") and nodes.constant(write.value) == 1.0
    ]
    return raised[0] if len(raised) == 1 else ""


def _disorder(nodes: Nodes, variables: Sequence[str]) -> str:
    """Describe ops of a step that may run in another order, or not in every step; may be empty."""
    written = alone_written(nodes)
    strange = next((name for name in variables if name not in written), None)
    if strange is not None:
        return f"{strange!r} is not changed by exactly one op in each step"
    ends = [written[name].op for name in variables]
    places = {op: 1 << place for place, op in enumerate(ends)}
    whole = (1 << len(ends)) - 1
    if not any(
        done | places.get(name, 0) == whole for name, done in before(nodes, list(nodes.by_name), places).items()
    ):
        return f"no op in the graph waits for all of {', '.join(sorted(ends)[:3])}: they may not run in one step"
    if len({nodes.branches.get(op) for op in ends}) > 1:
        return "some ops of a step are on one side of a condition, others are not"
    step = ancestors(nodes, dict.fromkeys(ends, ""))
    readers = {name: _readers(nodes, name, set(step)) - {written[name].op} for name in variables}
    bits = {op: 1 << place for place, op in enumerate(dict.fromkeys([*ends, *set().union(*readers.values())]))}
    done = before(nodes, step, bits)
    for name, op in zip(variables, ends, strict=True):
        for reader in sorted(readers[name]):
            if not (bits[reader] & done[op] or bits[op] & done[reader]):
                return f"{reader!r} reads {name!r} before or after {op!r} changes it"
    return ""


def _readers(nodes: Nodes, variable: str, step: Collection[str]) -> set[str]:
    """The ops of a step that read a variable, through `Identity` unless it is a resource. `late_reads` checks
    gradients."""
    todo, readers = [variable], set[str]()
    while todo:
        for reader in nodes.readers.get(todo.pop(), ()):
            if reader not in readers and reader in step:
                readers.add(reader)
                is_alias = nodes.op(reader) == "Identity" and nodes.op(variable) != "VarHandleOp"
                todo += [reader] if is_alias else []
    aliases = {reader for reader in readers if nodes.op(reader) == "Identity" and nodes.op(variable) != "VarHandleOp"}
    return {reader for reader in readers - aliases if not nodes.is_backward(reader)}


def _described(
    nodes: Nodes, identities: Mapping[str, Identity], class_name: str, flags: Mapping[str, Any], steps: Collection[str]
) -> Trained:
    """Read numbers, rate, clipping and tables of variables that follow one rule.

    Args:
      steps: ops that a counter must wait for if the rate depends on it.
    """
    numbers = [_numbers(nodes, identity) for identity in identities.values()]
    decays = {name: identity.hyper[DECAY].number for name, identity in identities.items() if DECAY in identity.hyper}
    gradient_nodes = {name: identity.gradient[0] for name, identity in identities.items()}
    outside: dict[str, str] = {}
    gradients = Gradients(nodes, identities)
    limits = {
        gradients.clipping(name, _sparse_values(nodes, gradient), outside) for name, gradient in gradient_nodes.items()
    }
    rates = {_place(nodes, identity.hyper[RATE]): identity.hyper[RATE] for identity in identities.values()}
    same = all(settings == numbers[0] and None not in settings.values() for settings in numbers)
    if not same or max(len(set(decays.values())), len(limits), len(rates)) > 1 or None in decays.values():
        return Trained(outside={**outside, "optimizer": "not all variables are updated with the same settings"})
    config: dict[str, Any] = {**numbers[0], **flags}
    if class_name == BERT:
        config["weight_decay_rate"] = next(iter(decays.values()), 0.0)
        config["exclude_from_weight_decay"] = [f"^{re.escape(name)}(:0)?$" for name in identities if name not in decays]
    config |= _rate(nodes, next(iter(rates.values())), steps, outside)
    limit = limits.pop()
    config |= {limit[0]: limit[1]} if limit is not None else {}
    ops = {write.op for name, write in alone_written(nodes).items() if name in identities}
    other = other_writer(nodes, frozenset(identities), ops)
    if other is not None:
        outside["updates"] = other
    sparse = frozenset(name for name, gradient in gradient_nodes.items() if nodes.op(gradient) == ROWS_ADDED)
    seen = not outside
    config |= rows_apart(config, sparse, gradients.added, outside)
    return Trained(class_name, config, sparse, outside, seen, frozenset(gradients.gathered))


def _numbers(nodes: Nodes, identity: Identity) -> dict[str, float | None]:
    """The hyperparameters except the rate: constants, or variables that no step changes; None for others."""
    numbers: dict[str, float | None] = {}
    for key, scalar in identity.hyper.items():
        number = scalar.number
        if number is None and (number := nodes.constant(scalar.output)) is not None and scalar.is_derived:
            number = 1 - number
        numbers[key] = number
    ordered = sorted(numbers, key=lambda key: key != "epsilon")
    return {key: numbers[key] for key in ordered if key not in (RATE, DECAY)}


def _place(nodes: Nodes, scalar: Scalar) -> str | float:
    """A key that is equal for numbers that are the same in each step."""
    return nodes.source(scalar.output) if scalar.number is None else scalar.number


def _rate(nodes: Nodes, scalar: Scalar, steps: Collection[str], outside: dict[str, str]) -> Mapping[str, Any]:
    name, number = nodes.source(scalar.output), scalar.number if scalar.is_derived or not scalar.output else None
    number = nodes.constant(name) if number is None and not scalar.is_derived else number
    rate = schedules.read(nodes, name) if number is None else number
    text = f"{name!r} ({nodes.op(name)}) in the graph computes it" if rate is None else ""
    text = text or (schedules.never_counts(nodes, steps) if number is None else "")
    if text:
        outside[RATE] = text
    return {} if text else {RATE: rate}


def _sparse_values(nodes: Nodes, gradient: str) -> str:
    return nodes.parents(gradient)[0] if nodes.op(gradient) == ROWS_ADDED else gradient
