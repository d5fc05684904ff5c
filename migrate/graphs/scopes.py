"""Find the slots and the counter of a tf.train optimizer, under any name that the program gave them.

A slot is created in the variable scope that is open when `minimize` is called: that of `net/w` is `net/w/Adam`, and
inside `variable_scope("train")` it is `train/net/w/Adam` (training/slot_creator.py 1.15). The step that `minimize` gets
may be any variable; the op that raises it has the name of the update (training/optimizer.py 1.15).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from migrate.graphs.nodes import Nodes


def slots(nodes: Nodes, updates: Iterable[str]) -> dict[str, str]:
    """Map slots made in a scope to their names outside of any. Slots of a variable's second optimizer get the next
    numbers, as they do outside.

    Args:
      updates: scopes of `apply_gradients`.
    """
    update_scopes = set(updates)
    slot_parts: dict[str, tuple[str, str, str]] = {}
    for name, inputs in nodes.inputs.items():
        scope, _, rest = name.partition("/update_")
        owner = rest.rpartition("/")[0]
        if scope not in update_scopes or owner not in nodes.variables:
            continue
        for slot in nodes.variables.intersection(inputs) - {owner}:
            head, _, called = slot.rpartition("/")
            if _is_slot(slot, owner, nodes.variables):
                slot_parts[slot] = (owner, called.rstrip("_0123456789"), head.removesuffix(owner))
    plain: dict[str, str] = {}
    last_numbers: dict[tuple[str, str], int] = {}
    for name, (owner, base, _) in sorted(slot_parts.items(), key=lambda item: (item[1][2], item[0])):
        number = last_numbers[owner, base] = last_numbers.get((owner, base), -1) + 1
        plain[name] = f"{owner}/{base}_{number}" if number else f"{owner}/{base}"
    return plain if not (set(plain.values()) - plain.keys()) & nodes.variables else {}


def _is_slot(name: str, owner: str, variables: Collection[str]) -> bool:
    """Whether `name` is SCOPE/OWNER/SLOT and not a slot of OptimizerV2, whose settings would be in that scope."""
    head = name.rpartition("/")[0]
    return head.endswith(f"/{owner}") and f"{head.removesuffix(owner)}decay" not in variables


def counter(nodes: Nodes, updates: Iterable[str]) -> str:
    """The variable that all updates raise by one, empty unless there is exactly one."""
    counters = set()
    for scope in updates:
        target, *by = nodes.inputs.get(scope) or [""]
        raises = nodes.op(scope) in ("AssignAdd", "AssignAddVariableOp") and by and nodes.constant(by[0]) == 1.0
        counters.add(target if raises else "")
    return counters.pop() if len(counters) == 1 else ""


def without_graph(shapes: Mapping[str, tuple[int, ...]], called: Collection[str]) -> dict[str, str]:
    """Do the same as `slots` by names alone: all slots of an optimizer are in one scope.

    Args:
      shapes: of all arrays by name. called: names of slots, such as `Adam` and `Adam_1`.
    """
    plain: dict[str, str] = {}
    scopes = set()
    for name, shape in shapes.items():
        head, _, last = name.rpartition("/")
        parts = head.split("/")
        tails = ("/".join(parts[start:]) for start in range(len(parts)))
        owner = next((tail for tail in tails if shapes.get(tail) == shape), None)
        if last in called and owner is not None and owner != head:
            plain[name] = f"{owner}/{last}"
            scopes.add(head.removesuffix(owner))
    alone = len(set(plain.values())) == len(plain) and not any(plain_name in shapes for plain_name in plain.values())
    return plain if len(scopes) == 1 and alone else {}
