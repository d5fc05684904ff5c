"""Values for live variables: stored ones in the variable's dtype, and initial ones of new slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from migrate.bytes.arrays import LazyArray, widened
from migrate.live.conversions import Change
from optim import rules, slot_layout
from optim.checkpoints.assigning import Value
from optim.checkpoints.variables import dtype_called, handle
from optim.errors import UnsupportedError
from optim.rule import made_from


def size(value: Any) -> int:
    return int(np.prod(value.shape, dtype=np.int64)) * dtype_called(value.dtype).itemsize


def holds(wide: str, narrow: str) -> bool:
    """Whether one floating dtype can hold every number of another."""
    order = {"float16": 1, "bfloat16": 1, "float32": 2, "float64": 3}
    return wide in order and narrow in order and order[wide] > order[narrow]


def stored(what: str, array: LazyArray, dtype: str, change: Change | None) -> Value:
    """An array of the source in the dtype of its variable, converted if necessary."""
    wanted = dtype_called(dtype)

    def load() -> np.ndarray:
        if change is None and array.dtype == dtype:
            raw = np.asarray(array.load()).reshape(array.shape)
            return raw.view(wanted) if array.dtype == "bfloat16" else raw
        wide = widened(np.asarray(array.load()), array.dtype).reshape(array.shape)
        return (wide if change is None else change(wide)).astype(wanted)

    return Value(f"{what} ({array.stored_as})", array.shape, dtype, load)


def grown(first: Value, rest: Value) -> Value:
    """A value with one as its first part and the rest of another; the first one if both have the same shape."""
    if first.shape == rest.shape:
        return first

    def load() -> np.ndarray:
        whole = np.array(rest.load())
        whole[tuple(map(slice, first.shape))] = first.load()
        return whole

    return replace(first, shape=rest.shape, load=load)


def initial(slot: str, algorithm: str, arguments: Mapping[str, Any]) -> float | None:
    """The initial value of a new slot of a rule; None for the value of its variable."""
    cls = rules.of(algorithm)
    if slot == slot_layout.AVERAGE or cls is None:
        return None
    start = next((s.initial for s in made_from(cls, arguments)[0].slots if s.name == slot), 0.0)
    return None if isinstance(start, str) else float(start)


def filled(what: str, variable: Any, value: Any, dtype: str | None = None) -> Value:
    """A number everywhere, or the present value of another variable, in the dtype of the first or a given one."""
    target = handle(variable)
    dtype = dtype or target.dtype
    numpy_dtype = dtype_called(dtype)
    if isinstance(value, (int, float)) and numpy_dtype.kind == "i" and value > np.iinfo(numpy_dtype).max:
        raise UnsupportedError(f"{what}: {int(value)} is more than its {dtype} counts to")

    def load() -> np.ndarray:
        if isinstance(value, (int, float)):
            return np.full(target.shape, value, numpy_dtype)
        return handle(value).to_host().astype(numpy_dtype)

    return Value(what, target.shape, dtype, load)
