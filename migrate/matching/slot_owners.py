"""Find the variable of the i-th slot of an optimizer's lists: by name, object graph, shape, position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from migrate.errors import AmbiguousError
from migrate.state import Twins
from optim.errors import MismatchError

SlotLists = Mapping[str, Mapping[int, tuple[str, tuple[int, ...]]]]
"""List name -> position -> (name of the slot variable, shape)."""


@dataclass(frozen=True)
class Owner:
    """A model variable: `name` is unique, `full_name` is the framework's (may be empty or shared)."""

    node: int
    name: str
    full_name: str
    path: tuple[str, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Match:
    owners: Mapping[int, Owner]
    """Position in the lists -> variable."""
    method: str
    """`name`, `object graph`, `shape` or `position`: the weakest method that was needed."""
    twins: Twins | None = None
    """The assumption, if the method was `position`."""


def match(lists: SlotLists, owners: Sequence[Owner], tracked: Mapping[int, Owner], where: str) -> Match:
    """Return the variable of each position.

    Args:
      lists: the optimizer's slot lists; the same position means the same variable in each.
      owners: the model's variables, in the object graph's order.
      tracked: the optimizer's own list of its variables, if it keeps one (Keras 3).

    Raises:
      AmbiguousError: two positions fit one variable; MismatchError: a position fits no variable.
    """
    positions = sorted({i for members in lists.values() for i in members})
    if tracked and all(i in tracked for i in positions):
        return Match({i: tracked[i] for i in positions}, "object graph")
    candidates, wrapped = _named(lists, positions, owners, 2), _named(lists, positions, owners, 1)
    if all(wrapped.values()):
        # Both readings may fit, `m/dense/kernel` if `kernel` and `dense/kernel` exist: then only shapes can decide.
        plain = candidates if all(candidates.values()) else {}
        candidates = {i: [*plain.get(i, []), *(o for o in wrapped[i] if o not in plain.get(i, []))] for i in positions}
    if not any(name for members in lists.values() for name, _ in members.values()):
        candidates = {i: list(owners) for i in positions}  # DTensor: no variable has a name
    _check_named(lists, candidates, where)
    if _unique(candidates):
        return _checked({i: c[0] for i, c in candidates.items()}, "name", where)
    shapes = {i: shape_at(lists, i) for i in positions}
    candidates = {i: [o for o in c if shapes[i] in (None, o.shape)] for i, c in candidates.items()}
    if _unique(candidates):
        return _checked({i: c[0] for i, c in candidates.items()}, "shape", where)
    return _by_position(candidates, owners, where)


def _unique(candidates: Mapping[int, Sequence[Owner]]) -> bool:
    nodes = {o.node for c in candidates.values() for o in c}
    return all(len(c) == 1 for c in candidates.values()) and len(nodes) == len(candidates)


def _check_named(lists: SlotLists, candidates: Mapping[int, Sequence[Owner]], where: str) -> None:
    missing = next((i for i, owners in candidates.items() if not owners), None)
    if missing is not None:
        names = sorted({members[missing][0] for members in lists.values() if missing in members})
        raise MismatchError(
            f"{where}: slot {' or '.join(map(repr, names))} (position {missing}) belongs to no variable of the"
            " checkpoint; save the model and the optimizer in one tf.train.Checkpoint"
        )


def shape_at(lists: SlotLists, position: int) -> tuple[int, ...] | None:
    """Return the shape that all slots of a position share, the variable's; None if they differ (Adafactor)."""
    shapes = {members[position][1] for members in lists.values() if position in members}
    return shapes.pop() if len(shapes) == 1 else None


def _named(lists: SlotLists, positions: Sequence[int], owners: Sequence[Owner], depth: int) -> dict[int, list[Owner]]:
    """Return position -> variables that all slots there name.

    A slot is `OPTIMIZER/SLOT/VARIABLE` in 2.9-2.15 (depth 2), in a LossScaleOptimizer `SLOT/VARIABLE` (depth 1).
    """
    by_name: dict[str, list[Owner]] = {}
    for owner in owners:
        by_name.setdefault(owner.full_name, []).append(owner)
    candidates: dict[int, list[Owner]] = {}
    for i in positions:
        names = {m[i][0].split("/", depth)[-1] for m in lists.values() if i in m and m[i][0]}
        candidates[i] = by_name.get(names.pop(), []) if len(names) == 1 else []
    return candidates


def named_alone(lists: SlotLists, depth: int) -> dict[int, str] | None:
    """Return the variable name of each position in slot names, for sources without variables.

    None if a position has no name, or several, or if two positions share one.

    Args:
      depth: of the variable's name in a slot's name, as in `OPTIMIZER/SLOT/VARIABLE`.
    """
    owner_names: dict[int, str] = {}
    for i in sorted({i for members in lists.values() for i in members}):
        parts = [members[i][0].split("/", depth) for members in lists.values() if i in members]
        names = {path[depth] for path in parts if len(path) > depth and path[depth]}
        if len(names) != 1 or any(len(path) <= depth for path in parts) or shape_at(lists, i) is None:
            return None
        owner_names[i] = names.pop()
    return owner_names if len(set(owner_names.values())) == len(owner_names) else None


def _by_position(candidates: Mapping[int, Sequence[Owner]], every: Sequence[Owner], where: str) -> Match:
    """Assign positions with the same candidates in the graph's order, which nothing proves.

    The optimizer's list has the order in which the program passed it its variables.
    """
    at = {owner.node: i for i, owner in enumerate(every)}
    candidates = {i: sorted(choices, key=lambda o: at[o.node]) for i, choices in candidates.items()}
    groups: dict[tuple[int, ...], list[int]] = {}
    for i in sorted(candidates):
        groups.setdefault(tuple(o.node for o in candidates[i]), []).append(i)
    owners: dict[int, Owner] = {}
    for nodes, positions in groups.items():
        if len(nodes) < len(positions):
            names = ", ".join(o.name for o in candidates[positions[0]]) or "none"
            raise MismatchError(
                f"{where}: the slots at positions {positions} could belong to {names}, which are fewer: the"
                " optimizer trains variables that the checkpoint does not contain. Migrate a checkpoint that"
                " contains them"
            )
        owners |= dict(zip(positions, candidates[positions[0]], strict=False))
    single = [at[owners[i].node] for i in sorted(owners) if len(candidates[i]) == 1]
    alike = tuple(tuple(o.name for o in candidates[p[0]]) for nodes, p in groups.items() if len(nodes) > 1)
    twins = Twins(tuple(owners[i].name for i in sorted(owners)), alike, single != sorted(single))
    return _checked(owners, "position", where, twins)


def _checked(owners: Mapping[int, Owner], method: str, where: str, twins: Twins | None = None) -> Match:
    slots = Counter(o.node for o in owners.values())
    twice = [o.name for o in owners.values() if slots[o.node] > 1]
    if twice:
        raise AmbiguousError(f"{where}: several slots of one kind fit variable {twice[0]}; save the checkpoint again")
    return Match(owners, method, twins)
