"""What tf.train does with the rows of a sparse gradient where a class has no kernel for them, to the last op.

Sources: `_apply_sparse` and `_resource_apply_sparse` of `training/gradient_descent.py` and `adam.py`, 1.0 to 2.15.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from migrate.graphs.gradients import ROWS_ADDED
from migrate.graphs.nodes import SCATTERS, SETS, WRITES, Nodes
from migrate.graphs.patterns import ADD, DIVIDE, Anything, Found, Variable, match


class TableRule(NamedTuple):
    """The class by whose rule a table moves, the op that moves it, and the rule's inputs by arguments.

    `slots`, `powers`: as `own_slots.read` gives them.
    """

    class_name: str
    op: str
    inputs: Mapping[str, str]
    slots: list[str]
    powers: list[str]


def read(nodes: Nodes, table: str, ops: Collection[str]) -> TableRule | None:
    """The rule of a table; None where its ops, those of its update, are no rule that is known here."""
    kinds = {name: nodes.op(name).removeprefix("Resource") for name in ops}
    changes = {name: _changed(nodes, name) for name, op in kinds.items() if op in (*WRITES, *SCATTERS)}
    moving = [name for name, changed in changes.items() if changed == table]
    if len(moving) != 1:
        return None
    del changes[moving[0]]
    read_rule = _of_adam if changes else _of_descent
    return read_rule(nodes, table, moving[0], changes)


BETAS = ("beta_1", "beta_2")
_GRADIENT, _RATE = Anything("gradient"), Anything("rate")


def _of_descent(nodes: Nodes, table: str, op: str, changes: Mapping[str, str]) -> TableRule | None:
    found = Found()
    taken = {"ScatterSub": _GRADIENT, "ResourceScatterAdd": ("Neg", _GRADIENT)}.get(nodes.op(op))
    step = ("Mul", taken, _RATE)
    if taken is None or not match(nodes, nodes.inputs[op][2], step, found) or _is_changed(nodes, op, found):
        return None
    return TableRule("GradientDescentOptimizer", op, {"learning_rate": _input(nodes, op, 2, 1)}, [table], [])


_LEFT = [("Sub", 1.0, Anything(each)) for each in BETAS]
_CORRECTED = (
    DIVIDE,
    ("Mul", _RATE, ("Sqrt", ("Sub", 1.0, Anything("beta2_power")))),
    ("Sub", 1.0, Anything("beta1_power")),
)
_STEP = (DIVIDE, ("Mul", _CORRECTED, Anything("m")), (ADD, ("Sqrt", Anything("v")), "epsilon"))
_ADDED = (("Mul", _GRADIENT, _LEFT[0]), ("Mul", ("Mul", _GRADIENT, _GRADIENT), _LEFT[1]))


def _of_adam(nodes: Nodes, table: str, op: str, changes: Mapping[str, str]) -> TableRule | None:
    """Each slot is multiplied by its beta and gets what rows of the gradient add; both then move the whole table."""
    found = Found()
    if not nodes.op(op).startswith("AssignSub") or not match(nodes, nodes.inputs[op][1], _STEP, found):
        return None
    slots = [_slot(nodes, found.nodes[each]) for each in "mv"]
    for slot, beta, added in zip(slots, BETAS, _ADDED, strict=True):
        own = [name for name, changed in changes.items() if changed == slot]
        kept = ("Mul", Variable(slot), Anything(beta))
        if not _is_moment(nodes, slot, own, op) or not all(
            match(nodes, nodes.inputs[name][-1], pattern, found)
            for name, pattern in zip(own, (kept, added), strict=True)
        ):
            return None
    if len(changes) != 4 or _is_changed(nodes, op, found):
        return None
    inputs = {
        "learning_rate": _input(nodes, op, 1, 0, 0, 0, 0),
        "beta_1": found.nodes["beta_1"],
        "beta_2": found.nodes["beta_2"],
        "epsilon": _input(nodes, op, 1, 1, 1),
    }
    return TableRule("AdamOptimizer", op, inputs, [table, *slots], [found.nodes[f"beta{i}_power"] for i in (1, 2)])


def _slot(nodes: Nodes, made: str) -> str:
    """The variable that a value is read from, once rows were added to it."""
    return _changed(nodes, made) if nodes.op(made) in SCATTERS else made


def _changed(nodes: Nodes, op: str) -> str:
    """The variable that an op changes; TF 1.0 hands on the one that was set before."""
    changed = nodes.target(nodes.inputs[op][0])
    return nodes.target(nodes.inputs[changed][0]) if nodes.op(changed) == "Assign" else changed


def _is_moment(nodes: Nodes, slot: str, own: Sequence[str], op: str) -> bool:
    """Whether a slot is set, then added to, and then read by what moves the table."""
    if [nodes.op(name).removeprefix("Resource") in (*SETS, "ScatterAdd") for name in own] != [True, True]:
        return False
    sets, adds = own
    reading = [n for n in nodes.behind(nodes.inputs[op][1], stop=[adds]) if slot in nodes.inputs.get(n, ())]
    in_order = nodes.op(sets) in SETS and sets in nodes.waits_for(adds)
    return in_order and all(adds in nodes.waits_for(each) for each in reading)


def _is_changed(nodes: Nodes, op: str, found: Found) -> bool:
    """Whether the update makes its gradient by itself, beyond adding up rows that occur twice."""
    made = found.nodes["gradient"]
    made = nodes.source(nodes.inputs[made][0]) if nodes.op(made) == ROWS_ADDED else made
    return made.startswith(f"{op.rpartition('/')[0]}/")


def _input(nodes: Nodes, name: str, *places: int) -> str:
    """An input of an input of a node, and so on, as it is handed in."""
    for place in places:
        name = nodes.inputs[nodes.source(name)][place]
    return name
