"""What the optimizers of tf_keras and, with `keras_3`, of Keras 3 do, passed on to an optimizer of `optim`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from optim import slot_layout
from optim.errors import UnsupportedError
from optim.keras import listing
from optim.keras.behaviour import Behaviour
from optim.keras.saved import Saved
from optim.keras_differences import TF_KERAS
from optim.legacy._base import LegacyOptimizer
from optim.optimizer import Optimizer
from optim.optimizers.groups import Groups
from optim.state.weights import CallableList
from optim.step import replicas


class _Forwarded:
    """An attribute of Keras's optimizers that is read from the engine; what Keras itself assigns to it is dropped."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        return getattr(instance._engine, self._name, None) if "inner" in vars(instance) else None

    def __set__(self, instance: Any, value: Any) -> None:
        pass


class Adapter(Saved):
    """An optimizer that keeps nothing itself: every public method of Keras's is passed on to `inner`, or refused.

    `making` puts it before Keras's `Optimizer`, whose constructor runs so that whatever Keras reads is there.
    """

    _iterations = _Forwarded("iterations")
    _learning_rate = _Forwarded("_learning_rate")

    def __init__(self, optimizer: Any):
        name = getattr(optimizer, "name", None) or type(optimizer).__name__
        self._keras.optimizers.Optimizer.__init__(self, name=name, **self._keras_arguments())
        for option in [n for n in vars(self) if _has(optimizer, n) and not n.startswith("_")]:
            del self.__dict__[option]  # Keras's own options, all unused: __getattr__ gives those of `inner`
        self.inner = optimizer
        if isinstance(optimizer, Optimizer) and not isinstance(optimizer, Groups):  # which Keras has no class for
            behaviour = vars(self)["_behaviour"] = self._behaviour_of(optimizer)
            behaviour.warn(behaviour.unlike, 3)
        self._track()

    def _behaviour_of(self, optimizer: Optimizer) -> Behaviour:
        is_new = int(optimizer._state.counter(slot_layout.ITERATIONS).now()) == 0
        return Behaviour(optimizer, self._keras, self._generation, "tensorflow", is_new)

    _generation = TF_KERAS

    def _keras_arguments(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        return f"for_keras({self.inner!r})"

    def __getattr__(self, name: str) -> Any:
        variables = listing.by_attribute(self._engine, name) if "inner" in vars(self) else None
        if variables is not None:
            return variables
        if name.startswith("_") or "inner" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        inner = vars(self).get("inner")
        if inner is not None and name not in dir(type(self)) and not name.startswith("_") and _has(inner, name):
            if callable(getattr(type(inner), name, None)):
                raise AttributeError(f"{name} is a method of {type(inner).__name__} and cannot be set")
            setattr(inner, name, value)
        elif isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)  # Keras's __setattr__ drops what is set to the value that it has
        else:
            super().__setattr__(name, value)

    # State.

    @property
    def built(self) -> bool:
        return "inner" in vars(self) and len(self._engine._state.tracked) > 0

    @built.setter
    def built(self, value: Any) -> None:
        pass

    _built = built

    @property
    def iterations(self) -> tf.Variable:
        return self._engine.iterations

    @iterations.setter
    def iterations(self, value: Any) -> None:
        self._engine.iterations = value

    @property
    def learning_rate(self) -> Any:
        return self.inner.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner.learning_rate = value

    lr = learning_rate

    @property
    def variables(self) -> list[tf.Variable]:
        """The state in the order in which this Keras has it."""
        self._track()  # `inner` may have been built, or restored, by itself
        return CallableList(self._listed())

    def add_variable(
        self, shape: Any, dtype: Any = None, initializer: Any = "zeros", name: str | None = None
    ) -> tf.Variable:
        """As `optim.Optimizer.add_variable`."""
        return self._engine.add_variable(shape, dtype, initializer, name)

    def add_variable_from_reference(
        self, model_variable: Any, variable_name: str, shape: Any = None, initial_value: Any = None
    ) -> tf.Variable:
        """As `optim.Optimizer.add_variable_from_reference`."""
        return self._engine.add_variable_from_reference(model_variable, variable_name, shape, initial_value)

    def build(self, var_list: Sequence[Any]) -> None:
        """Make the slots of variables; those that take their gradient as their value (float8) do not have them."""
        stepped = [v for v in var_list if not takes_gradient(v)]
        if len(stepped) < len(var_list) and (self._engine.gradient_accumulation_steps or 1) > 1:
            raise UnsupportedError("gradients of float8 scales cannot be accumulated; leave it out, or float8")
        if stepped:  # Keras 3 has none yet when it reads an .h5 file
            make = self.inner._create_all_weights if isinstance(self.inner, LegacyOptimizer) else self.inner.build
            make(stepped)
            self._track()
            self._load_what_was_read_before()

    # Steps.

    def update_step(self, gradient: Any, variable: Any) -> None:
        """The algorithm alone, on one variable."""
        self._engine.update_step(gradient, variable)

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
    ) -> tf.Variable:
        """Take one step, and return `iterations`.

        Args:
          grads_and_vars: (gradient, variable) pairs. name: means nothing here.
          skip_gradients_aggregation, and its reverse experimental_aggregate_gradients: see
            `optim.Optimizer.apply_gradients`.
        """
        aggregate = experimental_aggregate_gradients and not skip_gradients_aggregation
        pairs = list(grads_and_vars)
        if "_behaviour" in vars(self):
            behaviour = vars(self)["_behaviour"]
            behaviour.warn(behaviour.look_at(gradient for gradient, _ in pairs), 3)
        in_replica = replicas.needed()
        was_built = self.built
        if in_replica and not was_built and "_read_before" in vars(self):
            raise UnsupportedError(
                "state was read before there were slots; build the optimizer in the strategy's scope"
            )
        if not was_built and not in_replica:
            self.build([variable for _, variable in pairs])
        usable = [(g, v) for g, v in pairs if takes_gradient(v)]
        if usable and in_replica:
            raise UnsupportedError("scales of float8 layers cannot be trained in a tf.distribute.Strategy")
        others = [(g, v) for g, v in pairs if not takes_gradient(v)]
        before = self._engine.iterations.read_value() if usable else None
        self._apply(others, aggregate)
        if in_replica and not was_built:
            self._track()
        if usable:
            stepped = not others or tf.not_equal(self._engine.iterations.read_value(), before)
            for gradient, variable in usable:
                if gradient is not None:
                    variable.assign(tf.where(stepped, tf.cast(gradient, variable.dtype), variable))
        return self._engine.iterations

    def _apply(self, pairs: list[tuple[Any, Any]], aggregate: bool) -> None:
        if isinstance(self.inner, LegacyOptimizer):
            self.inner._apply_pairs(pairs, aggregate)
        else:
            self.inner.apply_gradients(pairs, skip_gradients_aggregation=not aggregate)

    def aggregate_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Gradients summed over the replicas of a strategy; DTensors are summed as they are differentiated."""
        return replicas.summed(list(grads_and_vars))

    def scale_loss(self, loss: Any) -> Any:
        """As `optim.Optimizer.scale_loss`; what `fit` differentiates."""
        if not self._engine.built and self._engine.loss_scale is not None:
            self._engine.build([])  # its scale is read, wherever variables will be
        return self._engine.scale_loss(loss)

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
        if isinstance(self.inner, LegacyOptimizer):
            return self.inner._compute_gradients(loss, var_list, tape=tape)
        return self.inner.compute_gradients(loss, var_list, tape)

    @tf.autograph.experimental.do_not_convert
    def minimize(self, loss: Any, var_list: Any, tape: Any = None) -> None:
        self.apply_gradients(self.compute_gradients(loss, var_list, tape))

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """At the end of `fit`: model variables become their averages, once there are any."""
        if self._engine._settings.averages.were_taken():
            self._engine.finalize_variable_values([v for v in var_list if not takes_gradient(v)])

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        self._engine.exclude_from_weight_decay(var_list, var_names)

    # Loss scaling by Keras.

    _how_to_keep_it = ""

    @property
    def _is_wrapped_by_loss_scale_optimizer(self) -> bool:
        return vars(self).get("_scaled_outside", False)

    @_is_wrapped_by_loss_scale_optimizer.setter
    def _is_wrapped_by_loss_scale_optimizer(self, value: bool) -> None:
        """LossScaleOptimizer of tf_keras sets it: it scales and unscales, and a second time would be wrong."""
        self._scaled_outside = value
        if value:
            self._stop_scaling()

    def _stop_scaling(self) -> None:
        engine = self._engine
        if engine.loss_scale is None:
            return
        warnings.warn(
            f"Keras's LossScaleOptimizer scales the loss: loss_scale={engine.loss_scale!r} of"
            f" {type(engine).__name__} is switched off{self._how_to_keep_it}",
            UserWarning,
            stacklevel=3,
        )
        scalars = set(engine._state.scalars)
        engine.stop_loss_scaling()
        for key in scalars - set(engine._state.scalars):
            self._delete_tracking(key)


def _has(optimizer: Any, name: str) -> bool:
    """Whether an optimizer knows an attribute, be it to refuse it."""
    return hasattr(type(optimizer), name) or hasattr(optimizer, name)


def takes_gradient(variable: Any) -> bool:
    """Whether a variable takes its gradient as its next value, as the scales of Keras 3's float8 layers do."""
    return bool(getattr(variable, "overwrite_with_gradient", False))
