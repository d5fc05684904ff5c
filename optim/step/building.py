"""Build an optimizer for model variables: create the slots of its algorithm and of its options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim.algorithm import Algorithm
from optim.bits import codes
from optim.options.settings import Settings
from optim.rule import AS_VARIABLE, Slot
from optim.state.state import State, check_has_shape
from optim.state.tracked import Tracked
from optim.step.stepping import check_not_tf1


def begin(optimizer: Any, name: str, mesh: dtensor.Mesh | None) -> State:
    """Give a new optimizer its name, and return its state. Raises UnsupportedError: in a TF1 graph."""
    check_not_tf1()
    optimizer._name = name
    return State(optimizer, name, mesh)


class Builder:
    """The slots of one optimizer: creates them, and looks them up."""

    def __init__(self, algorithm: Algorithm, state: State, settings: Settings):
        self._algorithm = algorithm
        self._state = state
        self._settings = settings
        self._done: set[int] = set()
        state.slots.storage = settings.storage()
        for name, value in algorithm.scalars.items():
            state.new_scalar(name, value, tf.float64, name)

    def build(self, var_list: Sequence[Any]) -> None:
        """Build as `Optimizer.build` describes."""
        self._settings.averages.check_not_swapped("build")
        with tf.init_scope(), tf.name_scope(self._state.scope):
            new = [t for t in self._state.track(var_list) if t.index not in self._done and not t.is_overwritten]
            self._settings.multipliers.add(new)
            for slot in self._algorithm.slots:
                for tracked in new:
                    self._add(slot, tracked)
            self._settings.add_slots(new)
            self._done.update(t.index for t in new)
        self._state.built = True

    def _add(self, slot: Slot, tracked: Tracked) -> None:
        """Create a slot of the algorithm, if such a variable has it."""
        rule = self._algorithm.rule_of(tracked)
        if rule is None or slot not in rule.slots:
            return
        if tracked.variable.shape.rank is None:
            check_has_shape(slot.name, tracked)
        dims = rule.slot_dims(slot, tracked.variable.shape.as_list(), tracked.names)
        policy, dtype = self._settings.placement.slot_placement, self._settings.masters.state_dtype(tracked)
        if slot.initial == AS_VARIABLE:
            self._state.new_copy(slot.name, tracked, policy, dtype)
        elif dims is not None:
            dtype = self._settings.slot_dtypes.dtype_of(slot, tracked, dtype)
            if dtype.name in (codes.SIGNED, codes.UNSIGNED):
                self._settings.slot_dtypes.add_codes(slot, tracked, policy, dtype)
                return
            self._state.new_slot(slot.name, tracked, policy, fill=float(slot.initial), dims=dims, dtype=dtype)

    def slot_names(self) -> list[str]:
        """Return the names of the slots that exist; before `build`, of those that the algorithm will have."""
        return self._state.slots.names or list(dict.fromkeys(slot.name for slot in self._algorithm.slots))

    def get_slot(self, variable: Any, name: str) -> tf.Variable:
        """Return the slot `name` of a model variable, shaped like it. Raises UnknownVariableError (a KeyError).

        A slot that the algorithm keeps only for variables of another rank (Adafactor's row means of a bias) is a scalar
        zero, as in Keras, and not part of the state.
        """
        tracked = self._state.tracked[variable]
        variable_ = self._state.slots.find(name, tracked)
        rule = self._algorithm.rule_of(tracked)
        declared = () if rule is None else rule.slots
        if variable_ is None and self._state.built and any(slot.name == name for slot in declared):
            return self._state.placeholder(tracked)
        return variable_ if variable_ is not None else self._state.slots.get(name, tracked)

    def add_variable_from_reference(
        self, model_variable: Any, variable_name: str, shape: Sequence[int] | None = None, initial_value: Any = None
    ) -> tf.Variable:
        """Create a slot of a model variable: same dtype, and by default same shape and layout (or `slot_placement`).

        Args:
          model_variable: the variable it belongs to.
          variable_name: the slot's name, `m` for example; the variable is called `m/<name of the model variable>`.
          shape: another shape than the model variable's; then the slot is replicated on its mesh.
          initial_value: number, array or tensor of that shape; zeros by default.

        Raises:
          HyperparameterError: the variable has a slot of that name, from elsewhere or with another shape.
        """
        with tf.init_scope():
            (tracked,) = self._state.track([model_variable])
            policy = self._settings.placement.slot_placement
            return self._state.new_reference(variable_name, tracked, policy, shape, initial_value)
