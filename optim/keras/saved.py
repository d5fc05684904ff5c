"""How Keras saves and loads an optimizer of `for_keras`: configuration, state, and what checkpoints see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from optim import slot_layout
from optim.errors import CheckpointError, MismatchError
from optim.keras import listing
from optim.keras.configured import Configured
from optim.layouts import placement
from optim.legacy._base import LegacyOptimizer
from optim.optimizer import Optimizer

REVIVED_RATE = "_learning_rate"
"""The learning rate in a SavedModel, as tf_keras calls its own there."""


class Saved(Configured):
    """What is saved of `inner`; `Adapter` completes it."""

    def _live_rate(self) -> Any:
        return self._engine._learning_rate

    @property
    def _engine(self) -> Optimizer:
        """Whose state it is: `inner`, or what it holds, if that is a legacy optimizer."""
        return self.inner._modern if isinstance(self.inner, LegacyOptimizer) else self.inner

    def _stored(self) -> dict[str, tf.Variable]:
        """State by name, slots by position: the names of Keras's layers change from one model to the next."""
        state = self._engine._state
        return {**state.scalars, **{f"{slot}.{index}": variable for slot, index, variable in state.slots.items()}}

    def _track(self) -> None:
        """Let TensorFlow's checkpoints know the state, and give it the values of one that was read before."""
        known = vars(self).get("_known_state", {})
        stored = self._stored()
        for key, variable in stored.items():
            if known.get(key) is variable:
                continue
            self._track_trackable(variable, key, overwrite=True)  # type: ignore[attr-defined]
            # TensorFlow, which finds `key` by `_lookup_dependency`, leaves out what was read before there was a slot.
            self._handle_deferred_dependencies(key, variable)  # type: ignore[attr-defined]
            if not hasattr(variable, "path"):
                variable.path = listing.path(self._engine, key, variable)  # also in .h5 files of Keras 3
        vars(self)["_known_state"] = stored  # past Keras's __setattr__, which would track it once more

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        stored = self._stored()
        # Beside the state, what others put there: users their attributes, LossScaleOptimizer of tf_keras its scale.
        others = {name: child for name, child in self._explicit_children() if name != "inner" and name[0] != "_"}
        if save_type != "savedmodel":
            return {**others, **stored}
        # Loading such a model sets the children as attributes of an optimizer of tf_keras's, and drops that; it needs
        # two that it knows, and takes no `learning_rate`. `load_weights` reads the state from them.
        state = {REVIVED_RATE if key == slot_layout.LEARNING_RATE else key: v for key, v in stored.items()}
        variables = tf.__internal__.tracking.wrap(list(self._engine._state.all_variables()))
        return {"_iterations": self._engine.iterations, "_variables": variables, **others, **state}

    def _explicit_children(self) -> list[tuple[str, Any]]:
        return [(child.name, child.ref) for child in self._self_unconditional_checkpoint_dependencies]  # type: ignore[attr-defined]

    # TensorFlow's checkpoints ask this for what a child of that name is restored into.
    def _lookup_dependency(self, name: str, *args: Any, **kwargs: Any) -> Any:
        key = slot_layout.LEARNING_RATE if name == REVIVED_RATE else name
        stored = self._stored() if "inner" in vars(self) else {}
        return stored[key] if key in stored else super()._lookup_dependency(key, *args, **kwargs)  # type: ignore[misc]

    def save_own_variables(self, store: Any) -> None:
        """Write the state into a mapping name -> array, slots as `<slot>.<position of the variable>`."""
        for key, variable in self._stored().items():
            store[key] = placement.to_host(variable)

    def load_own_variables(self, store: Any) -> None:
        """Read what `save_own_variables` wrote; without slots, only the counters are set.

        Slots that are read before the optimizer is built are assigned when it is.

        Raises:
          CheckpointError: other slots, or other shapes. Then nothing was assigned.
        """
        vars(self).pop("_is_of_before", None)
        values = {key: np.asarray(store[key]) for key in store.keys()}  # noqa: SIM118  a group of h5py
        if len(self._engine._state.tracked) == 0 and any("." in key for key in values):
            vars(self)["_read_before"] = values
            values = {key: value for key, value in values.items() if "." not in key}
        self._load(values)

    def _load_what_was_read_before(self) -> None:
        values = vars(self).pop("_read_before", None)
        if values is not None:
            with tf.init_scope():
                self._load(values)

    def _load(self, stored: Mapping[str, np.ndarray]) -> None:
        variables = self._stored()
        if not any("." in key for key in stored):
            variables = {key: variable for key, variable in variables.items() if "." not in key}
        # A learning rate may be a constant on the one side and a schedule on the other.
        odd = {key for key in set(stored) ^ set(variables) if not key.endswith(slot_layout.LEARNING_RATE)}
        values = {key: stored[key] for key in variables if key in stored}
        odd |= {key for key, value in values.items() if value.shape != tuple(variables[key].shape)}
        if odd and all(key.isdigit() for key in stored):
            raise CheckpointError(
                "the file's state is that of Keras's own optimizer, which `dtopt migrate` brings over, or of the"
                " LossScaleOptimizer that Keras put around this one for the policy mixed_float16: then call"
                ' keras.mixed_precision.set_global_policy("mixed_float16") before the model is loaded. compile=False'
                " loads it without state"
            )
        if odd:
            raise CheckpointError(
                f"the file's state does not fit the optimizer ({type(self.inner).__name__}): {sorted(odd)[:5]} are"
                " missing, extra or misshapen; compile the model with the optimizer that it was saved with"
            )
        for key, value in values.items():
            _assign(variables[key], value)

    _lists_the_rate = False
    """Whether `variables` has a constant learning rate, as in Keras 3."""

    def _listed(self) -> list[tf.Variable]:
        return listing.variables(self._engine, with_rate=self._lists_the_rate)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Assign all `variables`, in their order or in that of earlier files. Raises MismatchError."""
        values, now, before = [np.asarray(w) for w in weights], self._listed(), self._engine._state.all_variables()
        is_of_before = vars(self).pop("_is_of_before", False)
        orders = [before, now] if is_of_before else [now, before]
        shapes = [value.shape for value in values]
        variables = next((order for order in orders if shapes == [tuple(v.shape) for v in order]), None)
        if variables is None:
            is_built = bool(self._engine._state.tracked)
            advice = (
                "optimizer.variables shows their order and shapes"
                if is_built
                else "call optimizer.build(variables) first"
            )
            raise MismatchError(
                f"set_weights got {len(values)} arrays that do not fit the optimizer's {len(now)} variables; {advice}"
            )
        for variable, value in zip(variables, values, strict=True):
            _assign(variable, value)


def _assign(variable: tf.Variable, value: np.ndarray) -> None:
    value = np.asarray(value, variable.dtype.as_numpy_dtype)
    variable.assign(placement.from_host(value, placement.layout_of(variable)))
