"""Convert tables between programs that split them differently, or not at all: `table/part_0`, `table/part_1`, ...

Parts are pieces along one dim, in the order of their numbers, as from TensorFlow's partitioners.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from migrate.algorithms.addons import EXCLUDED
from migrate.algorithms.keras_config import LAZY_ROWS
from migrate.algorithms.lamb import NOT_ADAPTED
from migrate.bytes.arrays import LazyArray
from migrate.state import OptimizerState, StoredVariable
from optim.errors import UnsupportedError

PART = re.compile(r"/part_(\d+)$")
Shapes = Mapping[str, tuple[int, ...]]


def resharded(state: OptimizerState, wanted: Shapes, grown: Collection[str] = ()) -> tuple[OptimizerState, list[str]]:
    """Return the state with tables in a model's parts, and a description of what was joined and split.

    Args:
      wanted: shapes of the model's variables by name. grown: those that may be larger than in the source.
    """
    shapes = {v.name: v.shape for v in state.variables}
    ours, texts = _parts_by_table(shapes), []
    for table, names in _parts_by_table(wanted).items():
        parts = ours.get(table, [])
        if not parts or [*parts, *names] == [table, table]:
            continue
        have, get = [shapes[n] for n in parts], [wanted[n] for n in names]
        axis = _common_axis(have, get, may_grow=all(name in grown for name in names))
        if axis is not None and (parts, have) != (names, get):
            state = _cut(state, parts, {name: wanted[name] for name in names}, axis)
            how = f"{len(parts)} part{'s' * (len(parts) > 1)} of the source along dim {axis}"
            texts.append(f"{table}: re-sharded, {len(names)} of the model from {how}")
    return state, texts


def _parts_by_table(shapes: Shapes) -> dict[str, list[str]]:
    numbered: dict[str, list[tuple[int, str]]] = {}
    for name in shapes:
        part = PART.search(name)
        numbered.setdefault(PART.sub("", name), []).append((int(part[1]) if part else -1, name))
    return {table: [name for _, name in sorted(parts)] for table, parts in numbered.items()}


def _common_axis(parts: Sequence[tuple[int, ...]], wanted: Sequence[tuple[int, ...]], may_grow: bool) -> int | None:
    if len({len(shape) for shape in (*parts, *wanted)}) != 1:
        return None
    for axis in range(len(parts[0])):
        rests = {(*shape[:axis], *shape[axis + 1 :]) for shape in (*parts, *wanted)}
        have, get = (sum(shape[axis] for shape in side) for side in (parts, wanted))
        if len(rests) == 1 and (have == get or (may_grow and have < get)):
            return axis
    return None


def _cut(state: OptimizerState, parts: Sequence[str], wanted: Shapes, axis: int) -> OptimizerState:
    old = [next(v for v in state.variables if v.name == name) for name in parts]
    total = sum(v.shape[axis] for v in old)
    bounds, start = {}, 0
    for name, shape in wanted.items():
        bounds[name] = (min(start, total), min(start + shape[axis], total))
        start += shape[axis]
    arrays = [v.array for v in old]
    whole = _joined([a for a in arrays if a is not None], axis) if None not in arrays else None
    new = [_variable(old[0], name, whole, bounds[name], axis) for name in wanted]
    slots = {}
    for slot, per in state.slots.items():
        arrays_of_parts = [per[name] for name in parts if name in per]
        slots[slot] = {name: array for name, array in per.items() if name not in parts}
        if not arrays_of_parts:
            continue
        if len(arrays_of_parts) < len(parts) or any(
            a.shape != v.shape for a, v in zip(arrays_of_parts, old, strict=False)
        ):
            raise UnsupportedError(
                f"slot {slot} of {parts[0]} has another shape than its variable, or is missing for some parts, so"
                " it cannot be joined; keep the parts as they are in the source, or start the table fresh"
            )
        slots[slot] |= {name: _piece(_joined(arrays_of_parts, axis), bounds[name], axis) for name in wanted}
    place = state.variables.index(old[0])
    variables = [v for v in state.variables if v.name not in parts]
    variables[place:place] = new
    matched = {k: how for k, how in state.matched.items() if k.partition("/")[2] not in parts}
    matched |= {f"{slot}/{name}": "name" for slot, per in slots.items() for name in wanted if name in per}
    return replace(
        state,
        variables=tuple(variables),
        slots=slots,
        matched=matched,
        hyperparameters=_following(state.hyperparameters, parts, wanted),
    )


def _variable(
    like: StoredVariable, name: str, whole: LazyArray | None, bounds: tuple[int, int], axis: int
) -> StoredVariable:
    shape = (*like.shape[:axis], bounds[1] - bounds[0], *like.shape[axis + 1 :])
    return replace(like, name=name, shape=shape, array=None if whole is None else _piece(whole, bounds, axis))


def _joined(arrays: Sequence[LazyArray], axis: int) -> LazyArray:
    if len(arrays) == 1:
        return arrays[0]
    first = arrays[0]
    shape = (*first.shape[:axis], sum(a.shape[axis] for a in arrays), *first.shape[axis + 1 :])
    return LazyArray(
        shape,
        first.dtype,
        lambda: np.concatenate([np.asarray(a.load()).reshape(a.shape) for a in arrays], axis),
        f"{first.stored_as}, ...",
    )


def _piece(array: LazyArray, bounds: tuple[int, int], axis: int) -> LazyArray:
    if bounds == (0, array.shape[axis]):
        return array
    shape = (*array.shape[:axis], bounds[1] - bounds[0], *array.shape[axis + 1 :])
    where = (*(slice(None) for _ in range(axis)), slice(*bounds))
    name = f"{array.stored_as}[{bounds[0]}:{bounds[1]}]"
    return LazyArray(shape, array.dtype, lambda: np.asarray(array.load()).reshape(array.shape)[where], name)


def _following(values: Mapping[str, object], parts: Sequence[str], wanted: Collection[str]) -> dict[str, object]:
    """Replace patterns for the old names in hyperparameters by ones for the new names."""
    hyperparameters = dict(values)
    for key in (LAZY_ROWS, EXCLUDED, NOT_ADAPTED):
        patterns = hyperparameters.get(key)
        if not isinstance(patterns, (list, tuple)) or not any(re.search(p, n) for p in patterns for n in parts):
            continue
        lost = [name for name in wanted if not any(re.search(p, name) for p in patterns)]
        hyperparameters[key] = [*patterns, *(f"^{re.escape(name)}$" for name in lost)]
    return hyperparameters
