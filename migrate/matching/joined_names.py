"""Find the owners of slots of a Keras 3 `.h5` by their names, which join path and slot: `adam/dense_kernel_momentum`.

An `_` inside the path looks like the one that joins, so that a name may have several meanings. The list has an order as
well, in which the optimizer got its variables. If the two contradict each other, nothing shows which is right.
Upstream: `base_optimizer.py::add_variable_from_reference`, `legacy_h5_format.py` of Keras 3.0 - 3.15.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from migrate.algorithms.spec import SHARED_SLOTS, Algorithm
from migrate.bytes.messages import some
from migrate.errors import ContradictionError
from migrate.lists.orders import Resolved
from migrate.state import Stored, StoredVariable

Read = Mapping[int, frozenset[tuple[str, str]]]
"""Id of each array -> the (slot, variable) pairs that its name may mean."""
DENIED = "names and order contradict each other, and the file does not show which is right"


def read(stored: Stored, algorithm: Algorithm) -> Read:
    """Return what the names of a list mean; empty if no name is of this kind."""
    if not stored.traits.joins_paths:
        return {}
    paths: dict[str, list[str]] = {}
    for variable in stored.variables:
        paths.setdefault(variable.name.replace("/", "_"), []).append(variable.name)
    meanings = {}
    for name, array in stored.weights or ():
        meant = _meant(name.rpartition("/")[2], algorithm)
        meanings[id(array)] = frozenset((slot, owner) for slot, path in meant for owner in _owners(path, paths))
    return meanings if any(meanings.values()) else {}


def _meant(name: str, algorithm: Algorithm) -> Iterator[tuple[str, str]]:
    """Yield the meanings of a name: `a_kernel_momentum` -> (m, `a_kernel`).

    `accumulator` of Ftrl, before Keras 3.10, names no variable.
    """
    for spec in (*algorithm.slots, *SHARED_SLOTS):
        for alias in {spec.name, *spec.aliases}:
            if name == alias:
                yield spec.name, ""
            elif name.endswith(f"_{alias}"):
                yield spec.name, name.removesuffix(f"_{alias}")


def _owners(path: str, paths: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the variables of that path, all variables if there is no path.

    Before 3.4 an `.h5` has only the last part of it. dtopt's names may begin with the layer, and lack the cell or layer
    within it.
    """
    if path in paths:
        return list(paths[path])
    everything = [name for names in paths.values() for name in names]
    if not path:
        return everything
    fit = (known for known in paths if path.endswith(f"_{known}") or known.endswith(f"_{path}"))
    return [name for known in fit for name in paths[known]] or [name for name in everything if _is_within(path, name)]


def _is_within(path: str, name: str) -> bool:
    """Return whether `gru_gru_cell_kernel` may be `gru/kernel`."""
    layer, _, last = name.rpartition("/")
    return path.startswith(f"{layer.replace('/', '_')}_") and path.endswith(f"_{last}")


def allowed(names: Read, resolved: Resolved) -> list[set[str]]:
    """Return the variables that the names at each position of a list mean, an empty list if the names show nothing.

    Raises:
      ContradictionError: a name means another slot than the order, or another variable than its neighbours.
    """
    count = max((len(arrays) for arrays in resolved.slots.values()), default=0) if names else 0
    owners = []
    for i in range(count):
        here = [(slot, arrays[i]) for slot, arrays in resolved.slots.items()]
        meant = [{v for s, v in names[id(array)] if s == slot} for slot, array in here if array is not None]
        owners.append(set.intersection(*meant))
        if not owners[-1]:
            shown = some([repr(array.stored_as) for _, array in here if array is not None])
            slots = some([slot for slot, array in here if array is not None])
            raise ContradictionError(
                f"{shown} should be {slots} of the variable at position {i} in the list, but these names do"
                f" not belong to one variable of the model, or not to these slots: {DENIED}"
            )
    return owners


def in_order(meant: Sequence[set[str]], variables: Sequence[StoredVariable], hinted: bool) -> list[StoredVariable]:
    """Return the variables of a list whose names leave one at each position.

    Args:
      hinted: whether the user named the trained variables, which come first.

    Raises:
      ContradictionError: the model, or the user, has them in another order.
    """
    names = [name for names_at in meant for name in names_at]
    order = [v.name for v in variables if v.name in names and (v.trainable or not hinted)]
    if order != [name for name in names if name in order]:
        who = "--variables names" if hinted else "the model has"
        raise ContradictionError(
            f"by their names the slots in the list are of {some(names, 6)}, in this order, and {who} {some(order, 6)}:"
            f" {DENIED}; if the names are, give the variables in their order in --variables"
        )
    by_name = {v.name: v for v in variables}
    return [by_name[name] for name in names]


def check(meant: Sequence[set[str]], owners: Sequence[StoredVariable]) -> None:
    """Compare variables found in another way with what names mean. Raises ContradictionError."""
    for i, (names, owner) in enumerate(zip(meant, owners, strict=False)):
        if owner.name not in names:
            raise ContradictionError(
                f"the slots at position {i} in the list are named after {' or '.join(sorted(names))}, but"
                f" order and shape assign them to {owner.name}: {DENIED}"
            )
