"""Optimizers as values: convert them for `copy.deepcopy` and `pickle`, and restore them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optim.errors import UnsupportedError
from optim.state import weights
from optim.state.state import State


def contents(config: Mapping[str, Any], state: State) -> tuple[Any, ...]:
    """Return the constructor's arguments, the variables with their names, and the values of all state.

    Raises:
      UnsupportedError: some of it is on a mesh.
    """
    tracked = list(state.tracked)
    if state.mesh is not None or any(t.mesh is not None for t in tracked):
        raise UnsupportedError(
            "an optimizer on a mesh is not copied or pickled; use optim.save_checkpoint and optim.load_checkpoint"
        )
    scalars = dict(zip(state.scalars, weights.read(list(state.scalars.values())), strict=True))
    slots = [(slot, index, value.numpy()) for slot, index, value in state.slots.items()]
    return dict(config), [t.user_variable for t in tracked], [t.name for t in tracked], scalars, slots


def restore(
    cls: Any,
    config: Mapping[str, Any],
    variables: Sequence[Any],
    names: Sequence[str],
    scalars: Mapping[str, Any],
    slots: Sequence[tuple[str, int, Any]],
) -> Any:
    """Return an optimizer of class `cls` with these contents."""
    optimizer = cls.from_config(config)
    state: State = optimizer._state
    if variables:
        state.track(variables, names)
        optimizer.build(variables)
    for name, value in scalars.items():
        if name not in state.scalars:
            optimizer.add_variable(value.shape, value.dtype, name=name)
        state.scalars[name].assign(value)
    for slot, index, value in slots:
        tracked = state.tracked.at(index)
        copy = state.slots.find(slot, tracked)
        if copy is None:
            optimizer.add_variable_from_reference(tracked.user_variable, slot, value.shape, value)
        else:
            copy.assign(value)
    return optimizer
