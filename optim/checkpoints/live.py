"""The state of a live optimizer, of TensorFlow or of Keras on JAX or PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LiveState:
    """The variables of an optimizer.

    Attributes:
      tracked: what it knows of its model variables, in build order, each with `index`, `name` and `variable`.
      slots: slot variable by slot name and index. scalars: variables of the whole optimizer by name.
    """

    tracked: Sequence[Any]
    slots: Mapping[str, Mapping[int, Any]]
    scalars: Mapping[str, Any]

    def find(self, slot: str, tracked: Any) -> Any:
        """A slot variable; None without one."""
        return self.slots.get(slot, {}).get(tracked.index)


def has_slots_of_keras(optimizer: Any) -> bool:
    """Whether it is what `for_keras` made on JAX or PyTorch."""
    return bool(getattr(optimizer, "has_slots_of_keras", False))


def state_of(optimizer: Any) -> LiveState:
    """The state of an optimizer as it is now."""
    if has_slots_of_keras(optimizer):
        return LiveState(optimizer._state.tracked, optimizer._slots, optimizer._scalars)
    state = optimizer._state
    slots: dict[str, dict[int, Any]] = {}
    for slot, index, variable in state.slots.items():
        slots.setdefault(slot, {})[index] = variable
    return LiveState(list(state.tracked), slots, state.scalars)


def config_of(optimizer: Any) -> Mapping[str, Any]:
    """What `get_config()` of the optimizer of `optim` returns, with its learning rate as it is now."""
    config: Mapping[str, Any] = optimizer.inner_config() if has_slots_of_keras(optimizer) else optimizer.get_config()
    return config
