"""Recognise how tf.train updates the rows of a sparse gradient if a class has no kernel for them.

Sources: `_apply_sparse` and `_resource_apply_sparse` of `training/gradient_descent.py` and `adam.py`, 1.0 to 2.15.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from migrate.graphs.evaluate import assignments
from migrate.graphs.identify import Identifier, Identity
from migrate.graphs.nodes import ROWS_ADDED, SCATTERS, Nodes, Write
from migrate.graphs.rule_configs import class_of_rule
from migrate.graphs.writers import alone_written
from migrate.releases.recognition import SLOTS_NAMED_AFTER_CLASSES

BETAS = ("beta_1", "beta_2")
_CLASSES = {"SGD": "GradientDescentOptimizer", "Adam": "AdamOptimizer"}


class TableRule(NamedTuple):
    """The class whose rule updates a table, the op that changes it, and the rule's inputs by arguments.

    `slots`, `powers`: the result of `own_slots.read`.
    """

    class_name: str
    op: str
    inputs: Mapping[str, str]
    slots: list[str]
    powers: list[str]


def read(nodes: Nodes, tables: Mapping[str, Collection[str]]) -> dict[str, TableRule]:
    """Return the rules of tables, without those whose ops follow no known rule. `tables` has the ops of each update."""
    scalars = {name: [w] for name, w in alone_written(nodes).items() if nodes.shape(name) == ()} if tables else {}
    rules = {table: _read(nodes, table, ops, scalars) for table, ops in tables.items()}
    return {table: rule for table, rule in rules.items() if rule is not None}


def _read(nodes: Nodes, table: str, ops: Collection[str], scalars: Mapping[str, list[Write]]) -> TableRule | None:
    writes = assignments(nodes, ops)
    identifier = Identifier(nodes, {**scalars, **writes}, rows=True)
    rule_class = (
        class_of_rule(identifier.of(table), SLOTS_NAMED_AFTER_CLASSES) if len(writes.get(table, ())) == 1 else None
    )
    if rule_class is None or rule_class[0] not in _CLASSES or rule_class[2].decays:
        return None
    identity, op = rule_class[2], writes[table][0].op
    slots = [identity.slots[slot] for slot in ("m", "v") if slot in identity.slots]
    powers = [identity.powers[beta] for beta in BETAS if beta in identity.powers]
    is_whole = (
        writes.keys() == {table, *slots} and len(powers) == len(slots) and not _changes_gradient(nodes, op, identity)
    )
    rows = [sum(nodes.op(w.op).removeprefix("Resource") in SCATTERS for w in writes[name]) for name in (table, *slots)]
    if not is_whole or rows != ([0, 1, 1] if slots else [1]) or (identity.step or ("", 0.0)) != ("", 0.0):
        return None
    inputs = {key: scalar.output for key, scalar in identity.hyper.items()}
    is_read = not any(scalar.is_derived or not scalar.output for scalar in identity.hyper.values())
    return TableRule(_CLASSES[rule_class[0]], op, inputs, [table, *slots], powers) if is_read else None


def _changes_gradient(nodes: Nodes, op: str, identity: Identity) -> bool:
    source = identity.gradient[0]
    source = nodes.source(nodes.inputs[source][0]) if nodes.op(source) == ROWS_ADDED else source
    return source.startswith(f"{op.rpartition('/')[0]}/")
