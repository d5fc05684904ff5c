"""Stored slots in the dtypes of an optimizer that stores them in more bits or fewer.

Slots in the dtypes of the optimizer are taken bit for bit. Others are widened, decoded, rounded to nearest, or encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from optim import slot_layout
from optim.bits import codes
from optim.checkpoints.assigning import Value
from optim.checkpoints.variables import dtype_called, handle

CODES = (codes.SIGNED, codes.UNSIGNED)
Slots = Mapping[str, Mapping[str, Value]]
"""By slot name and variable name."""


def converted(stored: Slots, find: Callable[[str, str], Any]) -> dict[str, dict[str, Value]]:
    """The stored slots as the optimizer has them; `find` returns its slot of a variable, or None."""
    slots_ = {slot: dict(owners) for slot, owners in stored.items()}
    for slot, owners in stored.items():
        scale = slot_layout.scale_of(slot)
        for name, value in owners.items():
            variable, scales = find(slot, name), stored.get(scale, {}).get(name)
            if variable is None or handle(variable).dtype == value.dtype:
                continue
            dtype = handle(variable).dtype
            if scales is not None:
                value = _decoded(value, scales)
                del slots_[scale][name]
            if dtype in CODES:
                slots_[slot][name], slots_.setdefault(scale, {})[name] = encoded(value, dtype)
            else:
                slots_[slot][name] = _cast(value, dtype)
    return {slot: owners for slot, owners in slots_.items() if owners or slot not in stored}


def _decoded(value: Value, scales: Value) -> Value:
    return replace(value, dtype="float32", load=lambda: codes.decode(_loaded(value), _loaded(scales)))


def encoded(value: Value, dtype: str) -> tuple[Value, Value]:
    """A float32 value as codes of that dtype, and their scales."""

    @cache
    def both() -> tuple[np.ndarray, np.ndarray]:
        return codes.encode(_loaded(value), dtype)

    blocks = (codes.blocks_of(int(np.prod(value.shape))),)
    scales = Value(f"{value.what}, its scales", blocks, "float32", lambda: both()[1])
    return replace(value, dtype=dtype, load=lambda: both()[0]), scales


def _cast(value: Value, dtype: str) -> Value:
    return replace(value, dtype=dtype, load=lambda: _loaded(value).astype(dtype_called(dtype)))


def _loaded(value: Value) -> Any:
    return np.asarray(value.load())
