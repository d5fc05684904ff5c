"""Loss scaling for float16: the loss times a scale, gradients divided by it, and no step where one is not finite.

Micikevicius et al., "Mixed Precision Training" (2018), section 3.2. The dynamic scale goes as in Keras 3
(`optimizers/loss_scale_optimizer.py`) and TensorFlow (`mixed_precision/loss_scale_optimizer.py`): it starts at 2¹⁵, is
halved where a gradient is not finite, and doubled after so many finite steps in a row. As in TensorFlow, and not in
Keras 3, it never falls below 1 nor grows beyond float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from optim import lazy, slot_layout
from optim.arguments import count
from optim.errors import HyperparameterError, UnsupportedError
from optim.hyperparameters import to_number
from optim.options.base import Option, Part
from optim.precision import constant

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    from optim.layouts import placement
    from optim.state.state import State
else:
    tf, dtensor, placement = lazy.modules("tensorflow", "tensorflow.experimental.dtensor", "optim.layouts.placement")

DYNAMIC = "dynamic"
INITIAL_SCALE = 2.0**15
GROWTH_STEPS = 2000
LARGEST = float(np.finfo(np.float32).max)


def _parse(scale: Any) -> float | str | None:
    """`loss_scale`, checked. Raises HyperparameterError."""
    if scale is None or scale == DYNAMIC:
        return scale
    number = to_number("loss_scale", scale)
    if number is None or not 0 < number <= LARGEST:
        raise HyperparameterError(f"loss_scale must be None, {DYNAMIC!r} or a finite float32 > 0, got {scale!r}")
    return number


def _parse_growth_steps(steps: Any, scale: Any) -> int | None:
    """`loss_scale_growth_steps`, checked. Raises HyperparameterError."""
    if steps is None:
        return None
    if scale != DYNAMIC:
        raise HyperparameterError(f"loss_scale_growth_steps={steps!r} has no effect without loss_scale={DYNAMIC!r}")
    return count("loss_scale_growth_steps", steps)


class LossScale(Part):
    """What losses are multiplied with and gradients divided by."""

    options: ClassVar = {
        "loss_scale": Option(
            None,
            "gradients are those of a loss times this (`scale_loss`; `minimize` does it) and are divided by it;"
            ' a step on which one of them is not finite is left out, `iterations` included. > 0, or `"dynamic"`:'
            " 2¹⁵ at first, halved (to no less than 1) where a gradient is not finite, doubled after"
            " `loss_scale_growth_steps` (2000) finite steps in a row",
        ),
        "loss_scale_growth_steps": Option(None, "see `loss_scale`; an integer >= 1, with a dynamic scale only"),
    }

    def __init__(self, scale: Any, growth_steps: Any, state: State):
        self.loss_scale = _parse(scale)
        self.loss_scale_growth_steps = _parse_growth_steps(growth_steps, self.loss_scale)
        self._state = state
        if self._is_dynamic:
            state.new_scalar(slot_layout.LOSS_SCALE, INITIAL_SCALE, "float32", "loss_scale")
            state.new_scalar(slot_layout.FINITE_STEPS, 0, "int64", "finite_steps")

    @property
    def is_used(self) -> bool:
        return self.loss_scale is not None

    @property
    def _is_dynamic(self) -> bool:
        return self.loss_scale == DYNAMIC

    @property
    def counters(self) -> Sequence[str]:
        """The scalars that `update` moves."""
        return (slot_layout.LOSS_SCALE, slot_layout.FINITE_STEPS) if self._is_dynamic else ()

    @property
    def _growth_steps(self) -> int:
        return self.loss_scale_growth_steps or GROWTH_STEPS

    def change(self, name: str, value: Any) -> None:
        """A constant scale may be another constant, and a dynamic one grow after other numbers of steps."""
        if name == "loss_scale_growth_steps":
            self.loss_scale_growth_steps = _parse_growth_steps(value, self.loss_scale)
            return
        scale = _parse(value)
        if (scale == DYNAMIC) != self._is_dynamic:
            super().change(name, value)
        self.loss_scale = scale

    def stop_loss_scaling(self) -> None:
        """Let somebody else scale losses and gradients."""
        self.loss_scale = self.loss_scale_growth_steps = None
        for key in (slot_layout.LOSS_SCALE, slot_layout.FINITE_STEPS):
            self._state.remove_scalar(key)
        self.changed()

    def constant(self) -> float | None:
        """The constant `loss_scale`, under the name that Keras 3 has for it; setting it sets `loss_scale`."""
        return self.loss_scale if isinstance(self.loss_scale, float) else None

    def for_step(self, eager: bool) -> Any:
        """What gradients are divided by: None, a float, or a float64 tensor; eagerly only after waiting."""
        if not self._is_dynamic:
            return self.loss_scale
        if eager:
            return float(self._state.counter(slot_layout.LOSS_SCALE).peek())
        return tf.cast(self._state.scalars[slot_layout.LOSS_SCALE].read_value(), tf.float64)

    def now(self) -> Any:
        """The scale now: a float, in a `tf.function` a float32 tensor if it is dynamic, None without `loss_scale`."""
        if not self._is_dynamic:
            return self.loss_scale
        if tf.executing_eagerly():
            return float(self._state.counter(slot_layout.LOSS_SCALE).now())
        return self._state.scalars[slot_layout.LOSS_SCALE].read_value()

    def scale_loss(self, loss: Any) -> Any:
        """`loss` times the scale under `loss_scale`, else as it is: what a tape of your own is to differentiate.

        Raises:
          HyperparameterError: the dtype of the loss does not hold a constant scale.
          UnsupportedError: in a `tf.function`, before `build`, with a dynamic scale and without `mesh=`.
        """
        if not self.is_used:
            return loss
        loss = tf.convert_to_tensor(loss)
        return loss * self.factor_for(loss)

    def factor_for(self, loss: Any) -> Any:
        """The scale in the dtype of a loss, as something that may be multiplied with it."""
        scale, dtype = self.loss_scale, loss.dtype
        if not self._is_dynamic:
            if scale > dtype.max:
                raise HyperparameterError(
                    f"loss_scale={scale} is more than {dtype.name} can hold; cast the loss to float32"
                )
            return tf.constant(scale, dtype)
        self._state.place_scalars()
        variable = self._state.scalars[slot_layout.LOSS_SCALE]
        layout = placement.layout_of(variable)
        if not tf.executing_eagerly():
            if layout is None and not self._state.built:
                raise UnsupportedError(
                    "a loss is scaled in a tf.function before the optimizer knows where its variables are; call"
                    " optimizer.build(variables) first"
                )
            return tf.cast(variable.read_value(), dtype)
        is_placed = dtensor.is_dtensor(loss)
        is_beside = layout is not None and is_placed and dtensor.fetch_layout(loss).mesh == layout.mesh
        if is_beside or (layout is None and not is_placed):
            return tf.cast(variable.read_value(), dtype)  # without waiting for what is pending on the mesh
        return tf.cast(constant(self.now(), tf.float32), dtype)

    def update(self, is_finite: bool) -> None:
        """Move a dynamic scale on, after an eager step that was taken, or, False, was not."""
        if not self._is_dynamic:
            return
        scale, steps = (self._state.counter(key) for key in (slot_layout.LOSS_SCALE, slot_layout.FINITE_STEPS))
        old, count = float(scale.peek()), int(steps.peek()) + 1
        grows = is_finite and count >= self._growth_steps
        new = old * 2.0 if grows else old if is_finite else old / 2.0
        if new != old and 1.0 <= new <= LARGEST:
            scale.set(new)
        steps.set(0 if grows or not is_finite else count)

    def update_traced(self, is_finite: Any) -> None:
        """`update` inside a `tf.function`; `is_finite` is a bool tensor."""
        if not self._is_dynamic:
            return
        scalars = self._state.scalars
        scale, steps = scalars[slot_layout.LOSS_SCALE], scalars[slot_layout.FINITE_STEPS]
        old, count = scale.read_value(), steps.read_value() + 1
        grows = tf.logical_and(is_finite, count >= self._growth_steps)
        new = tf.where(grows, old * 2.0, tf.where(is_finite, old, old / 2.0))
        scale.assign(tf.where(tf.logical_and(new >= 1.0, new <= LARGEST), new, old))
        steps.assign(tf.where(tf.logical_and(is_finite, tf.logical_not(grows)), count, tf.zeros_like(count)))
