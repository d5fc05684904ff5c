"""What `for_keras` makes of an optimizer with `loss_scale=`, whose losses Keras must not scale a second time.

`compile` of a float16 model wraps what is no LossScaleOptimizer in one (`trainers/trainer.py` of Keras 3.15,
`engine/training.py` of tf_keras 2.21); so this is one, in what is public of theirs.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import tensorflow as tf

from optim import slot_layout
from optim.errors import UnsupportedError
from optim.optimizer import Optimizer
from optim.options.loss_scale import DYNAMIC, GROWTH_STEPS, INITIAL_SCALE


def base_of(keras: ModuleType) -> type:
    """The class that `compile` of this Keras leaves unwrapped."""
    home = keras.optimizers if hasattr(keras.optimizers, "LossScaleOptimizer") else keras.mixed_precision
    cls: type = home.LossScaleOptimizer
    return cls


class ScalesLosses:
    """The public names of Keras's LossScaleOptimizer, answered by `loss_scale=` of the optimizer itself."""

    _engine: Optimizer

    @property
    def inner_optimizer(self) -> Any:
        """None is wrapped; the optimizer of `optim` is `inner`. Keras's callbacks ask whether there is one."""
        raise AttributeError("the optimizer scales losses itself and does not wrap one of Keras's")

    @property
    def dynamic(self) -> bool:
        return self._engine.loss_scale == DYNAMIC

    @property
    def loss_scale(self) -> Any:
        """The scale now; in a `tf.function` a float32 tensor if it is dynamic."""
        return self._engine.current_loss_scale

    @property
    def initial_scale(self) -> float:
        return INITIAL_SCALE if self.dynamic else float(self._engine.loss_scale)

    @property
    def dynamic_growth_steps(self) -> int | None:
        return (self._engine.loss_scale_growth_steps or GROWTH_STEPS) if self.dynamic else None

    @property
    def dynamic_counter(self) -> tf.Variable | None:
        """How many finite steps in a row there were; None with a constant scale."""
        return self._engine._state.scalars.get(slot_layout.FINITE_STEPS)

    def get_scaled_loss(self, loss: Any) -> Any:
        """`scale_loss` under the name that tf_keras has for it; `loss` may be a callable."""
        return (lambda: self.scale_loss(loss())) if callable(loss) else self.scale_loss(loss)  # type: ignore[attr-defined]

    def get_unscaled_gradients(self, grads: Any) -> Any:
        """Refused: a step divides its gradients by the scale, and would again."""
        raise UnsupportedError(
            "apply_gradients divides gradients by the loss scale; leave get_unscaled_gradients out, or loss_scale= out"
            " and wrap what for_keras gives in Keras's LossScaleOptimizer"
        )

    def check_finite(self, grads: Any) -> Any:
        """Whether all gradients that there are, are finite: a bool tensor."""
        return tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in grads if g is not None])
