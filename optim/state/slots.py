"""Slot variables by slot name and model variable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from optim import slot_layout
from optim.bits import codes
from optim.bits.storage import INT8, Storage
from optim.errors import UnknownVariableError
from optim.state.tracked import Tracked


class SlotTable:
    """Slot variables by slot name and model variable, in the order of their creation."""

    def __init__(self) -> None:
        self._slots: dict[str, dict[int, tf.Variable]] = {}
        self._count = 0
        self._names_of: dict[int, tuple[str, ...]] = {}
        self._cache: dict[Any, Any] = {}
        self.storage = Storage()
        """How slots and variables are stored that are not as steps compute."""

    def __len__(self) -> int:
        return self._count

    @property
    def names(self) -> list[str]:
        return list(self._slots)

    def put(self, slot: str, tracked: Tracked, value: tf.Variable) -> None:
        of_variables = self._slots.setdefault(slot, {})
        self._count += tracked.index not in of_variables
        of_variables[tracked.index] = value
        self._names_of.pop(tracked.index, None)
        self._cache.clear()

    def names_of(self, tracked: Tracked) -> tuple[str, ...]:
        """Return the slots that a variable has."""
        names = self._names_of.get(tracked.index)
        if names is None:
            names = self._names_of[tracked.index] = tuple(n for n in self._slots if tracked.index in self._slots[n])
        return names

    def find(self, slot: str, tracked: Tracked) -> tf.Variable | None:
        return self._slots.get(slot, {}).get(tracked.index)

    def get(self, slot: str, tracked: Tracked) -> tf.Variable:
        """Return one slot variable. Raises UnknownVariableError."""
        variable_ = self.find(slot, tracked)
        if variable_ is None:
            raise UnknownVariableError(
                f"variable {tracked} has no slot {slot!r}; the slots are {', '.join(self._slots) or 'none'}"
            )
        return variable_

    def of(self, tracked: Tracked, names: Sequence[str]) -> dict[str, tf.Variable]:
        """Return those of the named slots that the variable has."""
        variables = {name: self.find(name, tracked) for name in names}
        return {name: variable for name, variable in variables.items() if variable is not None}

    def packing(self, tracked: Tracked, names: Sequence[str]) -> tuple[str, ...] | None:
        """The dtypes of a variable's named slots, if one of them is codes, or if it or the variable is rounded
        stochastically; else None."""
        if not self.storage.is_used:
            return None
        dtypes = [slot.dtype for slot in self.of(tracked, names).values()]
        has_master = self.find(slot_layout.MASTER, tracked) is not None
        is_packed = any(dtype.name in (codes.SIGNED, codes.UNSIGNED) for dtype in dtypes)
        is_packed |= any(self.storage.rounds(dtype, is_slot=True) for dtype in dtypes)
        is_packed |= not has_master and self.storage.rounds(tracked.variable.dtype, is_slot=False)
        return tuple(dtype.name for dtype in dtypes) if is_packed else None

    def has_codes(self, tracked: Tracked) -> bool:
        """Whether a slot of a variable is in codes, of which rows cannot be updated by themselves."""
        names = self.names_of(tracked) if self.storage.slot_dtype == INT8 else ()
        return any(name.endswith(slot_layout.SCALE) for name in names)

    def cached(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the result of `make`, called once for a key, until there are further slots."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def traced(self, key: Any, function: Callable[..., Any]) -> Any:
        """Return `function`, in which these variables are constants, as a `tf.function`; made once for a key."""
        return self.cached(key, lambda: tf.function(function, autograph=False))

    def items(self) -> Iterator[tuple[str, int, tf.Variable]]:
        """Yield (slot, index of the model variable, slot variable), slot by slot."""
        for slot, per_variable in self._slots.items():
            for index, value in per_variable.items():
                yield slot, index, value
