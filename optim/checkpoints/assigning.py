"""Check values, then assign all of them or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from optim import slot_layout
from optim.checkpoints import live, variables
from optim.checkpoints.handles import Handle
from optim.errors import CheckpointError

MADE_HERE = (slot_layout.MASTER, slot_layout.GATHERED)
"""Slots that a checkpoint may lack, because they can be made of what it has."""


@dataclass(frozen=True)
class Value:
    """An array that is read when it is needed. `what` names it in messages."""

    what: str
    shape: tuple[int, ...]
    dtype: str
    """TensorFlow's name, `"float32"`, `"bfloat16"`, ..."""
    load: Callable[[], Any]
    """Gives a numpy array of that shape and dtype."""


@dataclass(frozen=True)
class Assignment:
    """One value and its variable, on any layout or without one.

    `fresh`: the variable is new, so that nothing is lost if another assignment fails.
    """

    variable: Any
    value: Value
    fresh: bool = False

    def check(self) -> None:
        """Raises CheckpointError if shape or dtype differ."""
        handle = variables.handle(self.variable)
        have = (handle.dtype, handle.shape)
        if have != (self.value.dtype, self.value.shape):
            raise CheckpointError(
                f"{self.value.what} is {self.value.dtype} {self.value.shape}, expected {have[0]} {have[1]}"
            )

    def run(self) -> None:
        value = np.asarray(self.value.load())
        if (value.shape, value.dtype.name) != (self.value.shape, self.value.dtype):
            raise CheckpointError(
                f"{self.value.what} was announced as {self.value.dtype} {self.value.shape}, and is not"
            )
        variables.handle(self.variable).assign(value)


def grown(value: Value, variable: Any) -> Value:
    """A value that is the first part of its variable along one dim, with the rest as that variable has it now."""
    shape = variables.handle(variable).shape

    def load() -> np.ndarray:
        whole = np.array(variables.handle(variable).to_host())
        whole[tuple(map(slice, value.shape))] = np.asarray(value.load())
        return whole

    return replace(value, shape=shape, load=load) if slot_layout.is_grown(value.shape, shape) else value


def assign_all(assignments: Iterable[Assignment], progress: Callable[[Value], None] | None = None) -> None:
    """Check everything, then assign everything.

    If a check, a read or an assignment raises, each variable that was assigned and is not `fresh` gets its old value
    back, and the error is raised again. Until the end the old values stay in memory along with the new ones.

    Args:
      progress: called with each value that was assigned.
    """
    todo = list(assignments)
    for assignment in todo:
        assignment.check()
    before: list[tuple[Handle, Any]] = []
    try:
        for assignment in todo:
            if not assignment.fresh:
                handle = variables.handle(assignment.variable)
                before.append((handle, handle.value()))
            assignment.run()
            if progress is not None:
                progress(assignment.value)
    except BaseException:
        for handle, old in reversed(before):
            handle.put_back(old)
        raise


@dataclass(frozen=True)
class StateValues:
    """The state of an optimizer of `optim`: `slots` by slot name and variable name, `scalars` by their names."""

    slots: Mapping[str, Mapping[str, Value]]
    scalars: Mapping[str, Value] = field(default_factory=dict)
    where: str = "the checkpoint"
    """For messages."""


def state_assignments(optimizer: Any, values: StateValues, *, fresh: bool) -> list[Assignment]:
    """What puts these values into a built optimizer.

    Raises:
      CheckpointError: a slot that the optimizer does not have, only some slots of a variable, or a missing scalar.
    """
    state = live.state_of(optimizer)
    by_name = {t.name: t for t in state.tracked}
    todo: list[Assignment] = []
    for slot, owners in values.slots.items():
        for name, value in owners.items():
            variable = state.find(slot, by_name[name])
            if variable is None:
                raise CheckpointError(
                    f"{values.where} holds slot {slot!r}, which {type(optimizer).__name__} with its config has not"
                )
            todo.append(Assignment(variable, value, fresh))
    _check_no_slot_is_missing(state, values)
    for name, variable in state.scalars.items():
        if name not in values.scalars:
            raise CheckpointError(f"{values.where} holds no {name!r} of the optimizer")
        todo.append(Assignment(variable, values.scalars[name], fresh))
    return todo


def _check_no_slot_is_missing(state: live.LiveState, values: StateValues) -> None:
    """Check that a variable has all of its slots in the file or, if it was never trained, no slots."""
    for tracked in state.tracked:
        here = [s for s in state.slots if state.find(s, tracked) is not None and s not in MADE_HERE]
        stored = [s for s in here if tracked.name in values.slots.get(s, ())]
        if stored and stored != here:
            missing = [s for s in here if s not in stored]
            raise CheckpointError(f"{values.where} holds slots {stored} of {tracked}, but not {missing}")


def settle(optimizer: Any) -> None:
    """Update an optimizer after an assignment of its state that does not show which variables are gathering
    gradients."""
    if live.has_slots_of_keras(optimizer):
        optimizer.mark_what_is_there()
    else:
        optimizer._settings.accumulation.mark_what_is_there()
