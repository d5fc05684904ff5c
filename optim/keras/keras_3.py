"""What only the optimizers of Keras 3 do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from optim import slot_layout
from optim.errors import MismatchError, UnsupportedError
from optim.keras.adapter import Adapter, takes_gradient
from optim.keras.scaling import base_of
from optim.keras_differences import KERAS_3
from optim.legacy._base import LegacyOptimizer


class Keras3Adapter(Adapter):
    """`Adapter` for Keras 3 on the TensorFlow backend."""

    _generation = KERAS_3
    _lists_the_rate = True
    _how_to_keep_it = "; compile(..., auto_scale_loss=False) keeps it"

    def _keras_arguments(self) -> dict[str, Any]:
        return {"learning_rate": 0.0}

    @property
    def iterations(self) -> tf.Variable:
        return _readable(self._engine.iterations)

    @iterations.setter
    def iterations(self, value: Any) -> None:
        if "inner" in vars(self):  # Keras 3.0 to 3.4 set it in their own constructor
            self._engine.iterations = value

    @property
    def _trainable_variables(self) -> list[Any]:
        """What `SwapEMAWeights` pairs with the averages."""
        return [t.variable for t in self._engine._state.tracked]

    @_trainable_variables.setter
    def _trainable_variables(self, value: Any) -> None:
        pass

    @property
    def _model_variables_moving_average(self) -> list[tf.Variable]:
        if not self._engine.use_ema:
            raise AttributeError("there are no averages without use_ema=True")
        return [self._engine.get_slot(t.variable, slot_layout.AVERAGE) for t in self._engine._state.tracked]

    @property
    def loss_scale_factor(self) -> float | None:
        """The constant that losses are multiplied with; None without scaling, or if the scale changes."""
        scale = self._engine.loss_scale
        return scale if isinstance(scale, float) else None

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: float | None) -> None:
        """LossScaleOptimizer of Keras 3 sets None, and MultiOptimizer its own."""
        if "inner" not in vars(self):
            return  # Keras's own constructor
        if value is None:
            self._stop_scaling()
        elif isinstance(self.inner, LegacyOptimizer):
            raise UnsupportedError(f"optim.legacy scales no losses: loss_scale_factor={value!r} would have no effect")
        else:
            self.inner.loss_scale = value

    def build(self, var_list: Sequence[Any]) -> None:
        """Before Keras 3.10 a LossScaleOptimizer passes only this on to the optimizer inside: that it is built now."""
        caller = sys._getframe(1).f_locals.get("self")
        if isinstance(caller, base_of(self._keras)) and getattr(caller, "inner_optimizer", None) is self:
            self._stop_scaling()
        super().build(var_list)

    def add_variable(  # type: ignore[override]
        self,
        shape: Any,
        initializer: Any = "zeros",
        dtype: Any = None,
        aggregation: Any = "none",
        layout: Any = None,
        name: str | None = None,
    ) -> tf.Variable:
        """As `optim.Optimizer.add_variable`; `layout` raises, replicas of a strategy take the same step
        (`aggregation`)."""
        if layout is not None:
            raise UnsupportedError("layout= is for JAX; variables of TensorFlow's optimizers follow their mesh")
        return self._engine.add_variable(shape, dtype, self._initializer(initializer), name)

    def _initializer(self, initializer: Any) -> Any:
        return initializer if callable(initializer) else self._keras.initializers.get(initializer)

    def add_variable_from_reference(  # type: ignore[override]
        self, reference_variable: Any, name: str | None = None, initializer: Any = "zeros"
    ) -> tf.Variable:
        """As `optim.Optimizer.add_variable_from_reference`."""
        dims = tuple(reference_variable.shape)
        value = self._initializer(initializer)(dims, dtype=reference_variable.dtype)
        return self._engine.add_variable_from_reference(reference_variable, name or "var", dims, value)

    def add_optimizer_variables(self, trainable_variables: Sequence[Any], name: Any, initializer: Any = "zeros") -> Any:
        """Slots for each variable: a list for a name, a tuple of lists for several; None if it has no slots
        (float8)."""
        names = [name] if isinstance(name, str) else list(name)
        is_one = isinstance(initializer, str) or callable(initializer)
        initializers = [initializer] * len(names) if is_one else list(initializer)
        if len(names) != len(initializers):
            raise MismatchError(f"{len(initializers)} initializers for {len(names)} names; give one for each")

        def slots(of: str, first: Any) -> list[Any]:
            add = self.add_variable_from_reference
            return [None if takes_gradient(v) else add(v, of, first) for v in trainable_variables]

        add = tuple(slots(of, first) for of, first in zip(names, initializers, strict=True))
        return add[0] if isinstance(name, str) else add

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any = None) -> None:
        """The algorithm alone, on one variable, with the optimizer's own learning rate; another one raises."""
        if learning_rate is not None and learning_rate is not self.learning_rate:
            raise UnsupportedError("update_step goes by the optimizer's learning_rate; set that, and leave it out here")
        super().update_step(gradient, variable)

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Take one step: without `trainable_variables`, gradients are in build order."""
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
            if len(grads) != len(trainable_variables):
                raise MismatchError(
                    f"{len(grads)} gradients for the {len(trainable_variables)} variables that the optimizer was built"
                    " on; pass trainable_variables"
                )
        self.apply_gradients(list(zip(grads, trainable_variables, strict=True)))

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """Refused, as Keras 3 does on the TensorFlow backend."""
        raise UnsupportedError("stateless_apply is JAX's; on the TensorFlow backend call apply")

    def assign(self, variable: Any, value: Any) -> None:
        _raw(variable).assign(tf.cast(value, _raw(variable).dtype))

    def assign_add(self, variable: Any, value: Any) -> None:
        _raw(variable).assign_add(tf.cast(value, _raw(variable).dtype))

    def assign_sub(self, variable: Any, value: Any) -> None:
        _raw(variable).assign_sub(tf.cast(value, _raw(variable).dtype))


def _raw(variable: Any) -> Any:
    """The `tf.Variable` in a variable of Keras 3."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def _readable(scalar: Any) -> Any:
    """The scalar, which numpy reads within the scope of a strategy, too, as callbacks of Keras 3 do: what TensorFlow's
    own classes give it there (2.21) is no array."""
    cls: Any = type(scalar)
    if isinstance(scalar, tf.distribute.DistributedValues) and "__array__" not in vars(cls):
        scalar.__class__ = _class_of_readable(cls)
    return scalar


@cache
def _class_of_readable(base: type) -> type:
    def __array__(self: Any, dtype: Any = None, copy: bool | None = None) -> np.ndarray:  # noqa: N807
        return np.array(self.numpy(), dtype)

    return type(base.__name__, (base,), {"__array__": __array__})
