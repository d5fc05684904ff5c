"""`compile` and `fit` of Keras 3 (TensorFlow backend) and tf_keras with the optimizers of this package.

Keras takes instances of its own `Optimizer` class only. `for_keras` makes one that keeps nothing itself and passes
everything on. Keras is never imported here: whoever has a Keras model has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

import optim
from optim import placement, slot_layout
from optim.errors import CheckpointError, HyperparameterError, MismatchError, UnsupportedError
from optim.optimizer import Optimizer
from optim.variables import plain_name

PACKAGE = "dtopt"
NAME = "KerasOptimizer"
REVIVED_RATE = "_learning_rate"
"""The learning rate in a SavedModel, as tf_keras calls its own there."""


def for_keras(optimizer: Optimizer, keras: ModuleType | None = None) -> Any:
    """An optimizer that Keras's `Model.compile` accepts; its state and its steps are those of `optimizer`.

    Args:
      optimizer: any optimizer of `optim`, or a subclass of yours.
      keras: the module `keras`, `tf_keras` or `tf.keras`; None finds it, if just one of them was imported.

    Returns:
      An instance of `keras.optimizers.Optimizer`. `inner` is `optimizer`; what Keras does not define (`get_slot`,
      `memory_report`, options such as `clipnorm`, ...) is looked up there. `model.save` keeps configuration and
      state, `load_model` brings both back once `keras_objects` was called.

    Raises:
      HyperparameterError: `optimizer` is none of ours. UnsupportedError: no Keras, two, or one on another backend.
    """
    return keras_class(keras)(optimizer)


def keras_objects(keras: ModuleType | None = None) -> dict[str, Any]:
    """`custom_objects` for `keras.models.load_model`, where a model was saved with an optimizer of `for_keras`.

    It also registers the class with Keras, so that calling it once is enough.

    Raises:
      UnsupportedError: as `for_keras`.
    """
    return {f"{PACKAGE}>{NAME}": keras_class(keras)}


def keras_class(keras: ModuleType | None = None) -> type:
    """The class of what `for_keras` returns: a subclass of that Keras's `Optimizer`, registered there."""
    return _make_class(_check_backend(keras or _imported_keras()))


def _imported_keras() -> ModuleType:
    found = [sys.modules[name] for name in ("keras", "tf_keras") if name in sys.modules]
    if len(found) == 1:
        return found[0]
    what = "both keras and tf_keras were" if found else "neither keras nor tf_keras was"
    raise UnsupportedError(f"{what} imported; pass the one that your model is made with: for_keras(optimizer, keras)")


def _check_backend(keras: ModuleType) -> ModuleType:
    if not hasattr(getattr(keras, "optimizers", None), "Optimizer"):
        raise UnsupportedError(f"keras must be the module keras, tf_keras or tf.keras, got {keras!r}")
    if keras.backend.backend() != "tensorflow":
        raise UnsupportedError(
            f"Keras runs on {keras.backend.backend()}; set KERAS_BACKEND=tensorflow before it is imported"
        )
    return keras


class _Forwarded:
    """An attribute of Keras's optimizers that is read from `inner`; what Keras itself assigns to it is dropped."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        return getattr(vars(instance).get("inner"), self._name, None)

    def __set__(self, instance: Any, value: Any) -> None:
        pass


class Adapter:
    """What the optimizers of Keras 3 and of tf_keras have in common, passed on to `inner`.

    `keras_class` puts it before Keras's `Optimizer`, whose constructor runs so that whatever Keras reads is there.
    """

    inner: Optimizer
    _keras: ModuleType
    built = _Forwarded("built")
    _built = _Forwarded("built")
    _iterations = _Forwarded("iterations")
    _learning_rate = _Forwarded("_rate")

    def __init__(self, optimizer: Optimizer):
        if not isinstance(optimizer, Optimizer):
            raise HyperparameterError(f"for_keras takes an optimizer of optim, got {type(optimizer).__name__}")
        rate = {"learning_rate": 0.0} if _is_keras_3(self._keras) else {}
        super().__init__(name=optimizer.name, **rate)  # type: ignore[call-arg]
        for name in [n for n in vars(self) if hasattr(optimizer, n) and not n.startswith("_")]:
            del self.__dict__[name]  # Keras's own options, all unused: __getattr__ gives those of `inner`
        self.inner = optimizer
        self._track()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "inner" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        inner = vars(self).get("inner")
        if inner is not None and name not in dir(type(self)) and not name.startswith("_") and hasattr(inner, name):
            raise AttributeError(f"{name} cannot be set here; make the optimizer that for_keras takes with {name}=")
        super().__setattr__(name, value)

    # State.

    @property
    def iterations(self) -> tf.Variable:
        return self.inner.iterations

    @iterations.setter
    def iterations(self, value: Any) -> None:
        self.inner.iterations = value

    @property
    def learning_rate(self) -> Any:
        return self.inner.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner.learning_rate = value

    lr = learning_rate

    @property
    def variables(self) -> list[tf.Variable]:
        return self.inner.variables

    @property
    def _trainable_variables(self) -> list[Any]:
        """What `SwapEMAWeights` of Keras 3 pairs with the averages."""
        return [t.variable for t in self.inner._state.tracked]

    @_trainable_variables.setter
    def _trainable_variables(self, value: Any) -> None:
        pass

    @property
    def _model_variables_moving_average(self) -> list[tf.Variable]:
        if not self.inner.use_ema:
            raise AttributeError("there are no averages without use_ema=True")
        return [self.inner.get_slot(t.variable, slot_layout.AVERAGE) for t in self.inner._state.tracked]

    def _stored(self) -> dict[str, tf.Variable]:
        """State by name, slots by position: the names of Keras's layers change from one model to the next."""
        state = self.inner._state
        return {**state.scalars, **{f"{slot}.{index}": variable for slot, index, variable in state.slots.items()}}

    def _track(self) -> None:
        """Let TensorFlow's checkpoints know the state, and give it the values of one that was read before."""
        for key, variable in self._stored().items():
            self._track_trackable(variable, key, overwrite=True)
            if not hasattr(variable, "path"):
                variable.path = variable.name.split(":")[0]  # what Keras 3 calls a variable in its .h5 files

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        if save_type != "savedmodel":
            return dict(self._stored())
        # Loading such a model sets the children as attributes of an optimizer of tf_keras's, and drops that; it needs
        # two that it knows, and takes no `learning_rate`. `load_weights` reads the state from them.
        state = {REVIVED_RATE if key == slot_layout.LEARNING_RATE else key: v for key, v in self._stored().items()}
        known = {"_iterations": self.inner.iterations, "_variables": tf.__internal__.tracking.wrap(self.variables)}
        return {**known, **state}

    # TensorFlow's checkpoints ask this for what a child of that name is restored into.
    def _lookup_dependency(self, name: str, *args: Any, **kwargs: Any) -> Any:
        key = slot_layout.LEARNING_RATE if name == REVIVED_RATE else name
        return super()._lookup_dependency(key, *args, **kwargs)  # type: ignore[misc]

    # Steps.

    def build(self, var_list: Sequence[Any]) -> None:
        special = [v for v in var_list if getattr(v, "overwrite_with_gradient", False)]
        if special:
            raise UnsupportedError(f"{plain_name(special[0])} takes its gradient as its value (float8); optim cannot")
        if var_list:  # Keras 3 has none yet when it reads an .h5 file
            self.inner.build(var_list)
            self._track()

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any = None) -> None:
        self.inner.update_step(gradient, variable)

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *_: Any, **__: Any) -> tf.Variable:
        """Take one step; `name=` and what says how replicas are summed mean nothing here. Returns `iterations`."""
        if tf.distribute.has_strategy():
            raise UnsupportedError(
                "optim's optimizers do not sum gradients over the replicas of a tf.distribute.Strategy; lay the model"
                " out on a DTensor mesh (docs/models.md), or train outside of the strategy"
            )
        pairs = list(grads_and_vars)
        if not self.inner.built:
            self.build([variable for _, variable in pairs])
        self.inner.apply_gradients(pairs)
        return self.inner.iterations

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Take one step, as in Keras 3: without `trainable_variables`, gradients are in build order."""
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
            if len(grads) != len(trainable_variables):
                raise MismatchError(
                    f"{len(grads)} gradients for the {len(trainable_variables)} variables that the optimizer was built"
                    " on; pass trainable_variables"
                )
        self.apply_gradients(list(zip(grads, trainable_variables, strict=True)))

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
        return self.inner.compute_gradients(loss, var_list, tape)

    @tf.autograph.experimental.do_not_convert
    def minimize(self, loss: Any, var_list: Any, tape: Any = None) -> None:
        self.apply_gradients(self.compute_gradients(loss, var_list, tape))

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """At the end of `fit`: model variables become their averages, once there are any."""
        if int(self.inner.iterations.numpy()) > 0:
            self.inner.finalize_variable_values(var_list)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        self.inner.exclude_from_weight_decay(var_list, var_names)

    # Saving.

    def get_config(self) -> dict[str, Any]:
        """The configuration of `inner`, and its class as `algorithm`."""
        cls = type(self.inner)
        own = getattr(optim, cls.__name__, None) is cls
        name = cls.__name__ if own else self._keras.saving.get_registered_name(cls)
        return {**self.inner.get_config(), "algorithm": name}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Any:
        arguments = dict(config)
        name = arguments.pop("algorithm", None)
        found = getattr(optim, str(name), None) if name in optim.__all__ else None
        found = found or cls._keras.saving.get_registered_object(str(name), custom_objects)
        if not (isinstance(found, type) and issubclass(found, Optimizer)):
            raise HyperparameterError(
                f"the model was saved with an optimizer of class {name!r}; register that class with"
                " keras.saving.register_keras_serializable, or load the model with compile=False"
            )
        return cls(found.from_config(arguments))

    def save_own_variables(self, store: Any) -> None:
        """Write the state into a mapping name -> array, slots as `<slot>.<position of the variable>`."""
        for key, variable in self._stored().items():
            store[key] = placement.to_host(variable)

    def load_own_variables(self, store: Any) -> None:
        """Read what `save_own_variables` wrote; without slots, only the counters are set.

        Raises:
          CheckpointError: other slots, or other shapes. Then nothing was assigned.
        """
        own, found = self._stored(), set(store.keys())
        if not any("." in key for key in found):
            own = {key: variable for key, variable in own.items() if "." not in key}
        # A learning rate may be a constant on the one side and a schedule on the other.
        odd = (found ^ set(own)) - {slot_layout.LEARNING_RATE}
        values = {key: np.asarray(store[key]) for key in own if key in found}
        odd |= {key for key, value in values.items() if value.shape != tuple(own[key].shape)}
        if odd:
            raise CheckpointError(
                f"the file's state does not fit the optimizer ({type(self.inner).__name__}): {sorted(odd)[:5]} are"
                " missing, extra or misshapen; compile the model with the optimizer that it was saved with"
            )
        for key, value in values.items():
            _assign(own[key], value)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Assign all `variables`. Raises MismatchError."""
        variables, values = self.variables, [np.asarray(w) for w in weights]
        if [v.shape for v in values] != [tuple(v.shape) for v in variables]:
            raise MismatchError(
                f"set_weights got {len(values)} arrays that do not fit the {len(variables)} variables of the optimizer;"
                " build it first"
            )
        for variable, value in zip(variables, values, strict=True):
            _assign(variable, value)


def _assign(variable: tf.Variable, value: np.ndarray) -> None:
    value = np.asarray(value, variable.dtype.as_numpy_dtype)
    variable.assign(placement.from_host(value, placement.layout_of(variable)))


def _is_keras_3(keras: ModuleType) -> bool:
    return hasattr(keras.optimizers.Optimizer, "apply")


@cache
def _make_class(keras: ModuleType) -> type:
    made = type(NAME, (Adapter, keras.optimizers.Optimizer), {"_keras": keras, "__doc__": Adapter.__doc__})
    made.__module__ = __name__
    registered: type = keras.saving.register_keras_serializable(package=PACKAGE, name=NAME)(made)
    return registered
