"""The slots of a `legacy.v2` optimizer, by its names and in its order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from optim.errors import UnsupportedError
from optim.legacy._hypers import HyperOptimizer
from optim.optimizer import Optimizer as ModernOptimizer
from optim.state import weights as weights_of_state
from optim.state.initializers import initializer_of


class Slots:
    """Slots in the order of their creation.

    Args:
      modern: the optimizer that owns the state.
      names: slots of the algorithm by the names of OptimizerV2, with those of `optim`.
      per_variable: whether new slots are listed variable by variable (Ftrl), and not slot by slot.
    """

    def __init__(self, modern: ModernOptimizer, names: Mapping[str, str], per_variable: bool):
        self._modern = modern
        self._known = names
        self._per_variable = per_variable
        self._order: list[tuple[str, int]] = []
        self._added: list[str] = []

    def build(self, var_list: Sequence[Any]) -> None:
        """Make the algorithm's slots of new variables, and list them after the existing ones."""
        state = self._modern._state
        count = len(state.tracked)
        self._modern.build(list(var_list))
        new, slots = range(count, len(state.tracked)), list(self._known.values())
        order = [(s, i) for i in new for s in slots] if self._per_variable else [(s, i) for s in slots for i in new]
        self._order += [(s, i) for s, i in order if state.slots.find(s, state.tracked.at(i)) is not None]

    @property
    def names(self) -> list[str]:
        """Names of the algorithm's slots, then of the added ones."""
        rule = self._modern._rule
        used = [slot.name for slot in rule.slots] if rule is not None else []
        return [old for old, new in self._known.items() if new in used] + self._added

    @property
    def variables(self) -> list[tf.Variable]:
        state = self._modern._state
        return [state.slots.get(slot, state.tracked.at(index)) for slot, index in self._order]

    def get(self, var: Any, name: str) -> tf.Variable:
        """Return one slot of a variable. Raises UnknownVariableError (a KeyError)."""
        state = self._modern._state
        return state.slots.get(self._inner_name(name), state.tracked[var])

    def _inner_name(self, name: str) -> str:
        return self._known.get(name) or f"added_{name}"

    def add(self, var: Any, name: str, initializer: Any, shape: Any, owner: str) -> tf.Variable:
        """Return the result of `Optimizer.add_slot`."""
        state = self._modern._state
        is_new = var not in state.tracked
        self.build([var])
        item, inner = state.tracked[var], self._inner_name(name)
        slot = state.slots.find(inner, item)
        dims = item.variable.shape.as_list() if shape is None else tf.TensorShape(shape).as_list()
        if slot is None:
            value = initial(initializer, dims, item.variable.dtype)
            slot = self._modern.add_variable_from_reference(var, inner, dims, value)
            self._added += [name] if name not in self._added else []
            self._order.append((inner, item.index))
        elif slot.shape.as_list() != dims:
            raise UnsupportedError(f"slot {name!r} of {item} has shape {slot.shape}, it cannot have {dims}")
        elif is_new:
            with tf.init_scope():
                value = tf.convert_to_tensor(initial(initializer, dims, slot.dtype), slot.dtype)
                weights_of_state.write([slot], [tf.broadcast_to(value, dims).numpy()], owner)
        return slot


def initial(initializer: Any, dims: Sequence[int], dtype: Any) -> Any:
    """Return the initial value for an `initializer`: a Keras name, a callable, or the value itself."""
    is_made = isinstance(initializer, str) or callable(initializer)
    return initializer_of(initializer)(dims, dtype=dtype) if is_made else initializer


class SlotOptimizer(HyperOptimizer):
    """The methods of a legacy optimizer for its slots and weights; `legacy.v2.Optimizer` completes it."""

    _slots: Slots

    def _create_all_weights(self, var_list: Sequence[Any]) -> None:
        """Make everything that a step on these variables needs: iterations, hyperparameters, missing slots."""
        _ = self.iterations
        self._create_hypers()
        self._create_slots(list(var_list))
        self._modern.build(list(var_list))

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        """Make the slots of variables with `add_slot`; subclasses override it."""
        self._slots.build(var_list)

    def __dir__(self) -> list[str]:
        # TensorFlow's checkpoints look for get_slot_names in dir(), and would try to save each slot a second time.
        return [*(name for name in super().__dir__() if name != "get_slot_names"), *self._hyper]

    def get_slot_names(self) -> list[str]:
        """Return the names of the slots: those of the algorithm, then the added ones."""
        return self._slots.names

    def get_slot(self, var: Any, slot_name: str) -> tf.Variable:
        """Return one slot of a variable. Raises UnknownVariableError (a KeyError)."""
        return self._slots.get(var, slot_name)

    def add_slot(self, var: Any, slot_name: str, initializer: Any = "zeros", shape: Any = None) -> tf.Variable:
        """Add a slot to a variable, and to the end of `weights`; return an existing slot unchanged.

        Args:
          var: a variable; it gets the algorithm's slots, too.
          slot_name: name of the slot; one of the algorithm's is filled by `initializer` if `var` is new.
          initializer: a Keras name, a callable `(shape, dtype=...) -> tensor`, or the initial value.
          shape: another shape than that of `var`; the slot is then replicated on its mesh.

        Raises:
          HyperparameterError: an unknown initializer. UnsupportedError: another shape for a slot of the algorithm.
        """
        return self._slots.add(var, slot_name, initializer, shape, self.name)

    def add_weight(
        self,
        name: str,
        shape: Any,
        dtype: Any = None,
        initializer: Any = "zeros",
        trainable: bool | None = None,
        synchronization: Any = tf.VariableSynchronization.AUTO,
        aggregation: Any = tf.VariableAggregation.NONE,
    ) -> tf.Variable:
        """Create a variable of the whole optimizer, replicated on the mesh if there is one; it is not in `weights`.

        Args:
          name: its name, and its key in checkpoints. shape: sequence of ints. dtype: float32 by default.
          initializer: as of `add_slot`.
          trainable: True raises, because no part of an optimizer is trained.
          synchronization, aggregation: how replicas of a `tf.distribute.Strategy` store it. All replicas make the same
            steps, so these values have no effect. ON_READ raises.
        """
        if trainable or synchronization == tf.VariableSynchronization.ON_READ:
            raise UnsupportedError(
                f"weight {name!r}: trainable=True and ON_READ have no effect here (no part of an optimizer is trained,"
                " and replicas keep one value); leave them out"
            )
        kind = tf.as_dtype(dtype or tf.float32)
        dims = tf.TensorShape(shape).as_list()
        value = tf.broadcast_to(tf.convert_to_tensor(initial(initializer, dims, kind), kind), dims)
        return self._modern.add_variable(dims, kind, lambda shape, dtype: value, name)

    # Methods that TensorFlow calls when it restores a checkpoint of OptimizerV2.

    def _lookup_dependency(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self.iterations if name == "iter" else super()._lookup_dependency(name, *args, **kwargs)

    def _create_or_restore_slot_variable(
        self, slot_variable_position: Any, slot_name: str, variable: Any, slot_variable_shape: Any = None
    ) -> tf.Variable:
        return self.add_slot(variable, slot_name, shape=slot_variable_shape)

    @property
    def _weights(self) -> list[tf.Variable]:
        state, rule = self._modern._state, self._modern._rule
        scalars = [state.scalars[name] for name in rule.scalars] if rule is not None and self._modern.built else []
        return [*([self._modern.iterations] if self._iterations_exist else []), *scalars, *self._slots.variables]

    @property
    def weights(self) -> list[tf.Variable]:
        """State in the order of its creation: iterations (Nadam: and momentum_cache), then slot by slot."""
        return self._weights

    def variables(self) -> list[tf.Variable]:
        """Return the same as `weights`."""
        return self.weights

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set the values of `weights`, in its order.

        RMSprop, Adagrad and Adadelta accept the list of their v1 namesake, too, which lacks iterations, and set them to
        0, as OptimizerV2 did. Adam accepts its namesake's placeholders of vhat.

        Raises:
          MismatchError (a ValueError): number or shapes of the arrays do not fit. Then nothing was set.
        """
        weights_of_state.write(self.weights, list(weights), self.name)
