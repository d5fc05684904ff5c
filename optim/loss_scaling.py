"""Loss scaling for float16: the loss times a scale, gradients divided by it, and no step where one is not finite.

Micikevicius et al., "Mixed Precision Training" (2018), section 3.2. The dynamic scale goes as in Keras 3
(`optimizers/loss_scale_optimizer.py`) and TensorFlow (`mixed_precision/loss_scale_optimizer.py`): it starts at 2¹⁵, is
halved where a gradient is not finite, and doubled after so many finite steps in a row. As in TensorFlow, and not in
Keras 3, it never falls below 1 nor grows beyond float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from optim import placement, slot_layout
from optim.errors import HyperparameterError, UnsupportedError

if TYPE_CHECKING:
    from optim.optimizer import Optimizer
    from optim.settings import Settings
    from optim.state import State

DYNAMIC = "dynamic"
INITIAL_SCALE = 2.0**15
GROWTH_STEPS = 2000
LARGEST = float(np.finfo(np.float32).max)


def parse(scale: Any) -> float | str | None:
    """`loss_scale`, checked. Raises HyperparameterError."""
    if scale is None or scale == DYNAMIC:
        return scale
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale <= LARGEST:
        raise HyperparameterError(f"loss_scale must be None, {DYNAMIC!r} or a finite float32 > 0, got {scale!r}")
    return float(scale)


def parse_growth_steps(steps: Any, scale: Any) -> int | None:
    """`loss_scale_growth_steps`, checked. Raises HyperparameterError."""
    if steps is None:
        return None
    if scale != DYNAMIC:
        raise HyperparameterError(f"loss_scale_growth_steps={steps!r} has no effect without loss_scale={DYNAMIC!r}")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise HyperparameterError(f"loss_scale_growth_steps must be an integer >= 1, got {steps!r}")
    return steps


def add_state(state: State, settings: Settings) -> None:
    """The scalars of a dynamic scale."""
    if settings.loss_scale == DYNAMIC:
        state.new_scalar(slot_layout.LOSS_SCALE, INITIAL_SCALE, tf.float32, "loss_scale")
        state.new_scalar(slot_layout.FINITE_STEPS, 0, tf.int64, "finite_steps")


def for_step(optimizer: Optimizer, eager: bool) -> Any:
    """What gradients are divided by: None, a float, or a float64 tensor; eagerly only after waiting."""
    scale = optimizer._settings.loss_scale
    if scale != DYNAMIC:
        return scale
    if eager:
        return float(optimizer._state.counter(slot_layout.LOSS_SCALE).peek())
    return tf.cast(optimizer._state.scalars[slot_layout.LOSS_SCALE].read_value(), tf.float64)


def now(optimizer: Optimizer) -> Any:
    """What `Optimizer.current_loss_scale` gives."""
    scale = optimizer._settings.loss_scale
    if scale != DYNAMIC:
        return scale
    if tf.executing_eagerly():
        return float(optimizer._state.counter(slot_layout.LOSS_SCALE).now())
    return optimizer._state.scalars[slot_layout.LOSS_SCALE].read_value()


def scaled(optimizer: Optimizer, loss: Any) -> Any:
    """What `Optimizer.scale_loss` returns."""
    if optimizer._settings.loss_scale is None:
        return loss
    loss = tf.convert_to_tensor(loss)
    return loss * factor_for(optimizer, loss)


def factor_for(optimizer: Optimizer, loss: Any) -> Any:
    """The scale in the dtype of a loss, as something that may be multiplied with it."""
    scale, dtype = optimizer._settings.loss_scale, loss.dtype
    if scale != DYNAMIC:
        if scale > dtype.max:
            raise HyperparameterError(
                f"loss_scale={scale} is more than {dtype.name} can hold; cast the loss to float32"
            )
        return tf.constant(scale, dtype)
    variable = optimizer._state.scalars[slot_layout.LOSS_SCALE]
    layout = placement.layout_of(variable)
    if not tf.executing_eagerly():
        if layout is None and not optimizer.built:
            raise UnsupportedError(
                "a loss is scaled in a tf.function before the optimizer knows where its variables are; call"
                " optimizer.build(variables) first"
            )
        return tf.cast(variable.read_value(), dtype)
    is_placed = dtensor.is_dtensor(loss)
    is_beside = layout is not None and is_placed and dtensor.fetch_layout(loss).mesh == layout.mesh
    if is_beside or (layout is None and not is_placed):
        return tf.cast(variable.read_value(), dtype)  # without waiting for what is pending on the mesh
    return tf.cast(tf.constant(now(optimizer), tf.float32), dtype)


def update(optimizer: Optimizer, is_finite: bool) -> None:
    """Move a dynamic scale on, after an eager step that was taken (or, False, was not) and was waited for."""
    if optimizer._settings.loss_scale != DYNAMIC:
        return
    scale, steps = (optimizer._state.counter(key) for key in (slot_layout.LOSS_SCALE, slot_layout.FINITE_STEPS))
    old, count = float(scale.peek()), int(steps.peek()) + 1
    grows = is_finite and count >= optimizer._settings.growth_steps
    new = old * 2.0 if grows else old if is_finite else old / 2.0
    if new != old and 1.0 <= new <= LARGEST:
        scale.set(new)
    steps.set(0 if grows or not is_finite else count)


def update_traced(optimizer: Optimizer, is_finite: Any) -> None:
    """`update` inside a `tf.function`; `is_finite` is a bool tensor."""
    if optimizer._settings.loss_scale != DYNAMIC:
        return
    scalars = optimizer._state.scalars
    scale, steps = scalars[slot_layout.LOSS_SCALE], scalars[slot_layout.FINITE_STEPS]
    old, count = scale.read_value(), steps.read_value() + 1
    grows = tf.logical_and(is_finite, count >= optimizer._settings.growth_steps)
    new = tf.where(grows, old * 2.0, tf.where(is_finite, old, old / 2.0))
    scale.assign(tf.where(tf.logical_and(new >= 1.0, new <= LARGEST), new, old))
    steps.assign(tf.where(tf.logical_and(is_finite, tf.logical_not(grows)), count, tf.zeros_like(count)))
