"""What one member of a group has of the state of the whole: its own variables, slots and scalars."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from optim import slot_layout
from optim.errors import UnknownVariableError
from optim.groups.selection import Selection
from optim.state.names import plain_name

if TYPE_CHECKING:
    from optim.state.counter import Counter
    from optim.state.slots import SlotTable
    from optim.state.state import State
    from optim.state.tracked import Tracked, TrackedVariables


class MemberVariables:
    """The variables of one group, found as in `TrackedVariables`."""

    def __init__(self, whole: TrackedVariables, selection: Selection, number: int):
        self._whole, self._selection, self._number = whole, selection, number
        self.unwrap = whole.unwrap

    def __iter__(self) -> Iterator[Tracked]:
        return iter(self._selection.members(self._number))

    def __len__(self) -> int:
        return len(self._selection.members(self._number))

    def __contains__(self, variable: Any) -> bool:
        return variable in self._whole and self._selection.of(self._whole[variable]) == self._number

    def at(self, index: int) -> Tracked:
        """By build order of the whole."""
        return self._whole.at(index)

    def __getitem__(self, variable: Any) -> Tracked:
        tracked = self._whole[variable]
        if self._selection.of(tracked) != self._number:
            raise UnknownVariableError(f"variable {plain_name(variable)!r} belongs to another group")
        return tracked


class MemberSlots:
    """The slots of the variables of one group."""

    def __init__(self, whole: SlotTable, selection: Selection, number: int):
        self._whole, self._selection, self._number = whole, selection, number

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(slot for slot, _, _ in self.items()))

    def items(self) -> Iterator[tuple[str, int, Any]]:
        mine = {tracked.index for tracked in self._selection.members(self._number)}
        return (item for item in self._whole.items() if item[1] in mine)

    def __getattr__(self, name: str) -> Any:
        if name == "_whole":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._whole, name)


class MemberState:
    """The state of one group, for the parts of its member. Scalars are kept in the whole under other names."""

    def __init__(self, whole: State, selection: Selection, number: int):
        self._whole, self._number = whole, number
        self.tracked = MemberVariables(whole.tracked, selection, number)
        if hasattr(whole, "slots"):  # on TensorFlow
            self.slots = MemberSlots(whole.slots, selection, number)

    def key(self, name: str) -> str:
        """What a scalar is called in the whole; the count of steps is that of all."""
        return name if name == slot_layout.ITERATIONS else slot_layout.group_key(self._number, name)

    @property
    def scalars(self) -> dict[str, Any]:
        prefix = self.key("")
        mine = (key for key in self._whole.scalars if key == slot_layout.ITERATIONS or key.startswith(prefix))
        return {key.removeprefix(prefix): self._whole.scalars[key] for key in mine}

    def counter(self, name: str) -> Counter:
        return self._whole.counter(self.key(name))

    def new_scalar(self, name: str, value: Any, dtype: Any, label: str) -> Any:
        return self._whole.new_scalar(self.key(name), value, dtype, self.key(label))

    def remove_scalar(self, name: str) -> None:
        self._whole.remove_scalar(self.key(name))

    def all_variables(self) -> list[Any]:
        return [*self.scalars.values(), *(variable for _, _, variable in self.slots.items())]

    def __getattr__(self, name: str) -> Any:
        if name == "_whole":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._whole, name)
