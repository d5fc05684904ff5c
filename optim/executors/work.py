"""What both executors are given for one step, and the maths that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from optim.options import EMAOption, GradientsClipOption
from optim.rule import Rule
from optim.variables import SlotTable, Tracked


@dataclass(frozen=True)
class Work:
    """One real step: dense gradients in, variables and slots updated.

    Scalars are Python floats eagerly and float64 tensors inside a `tf.function`.
    """

    tracked: Sequence[Tracked]
    gradients: Sequence[Any]
    slots: SlotTable
    rule: Rule | None
    """None where a subclass brings its own `update_step`."""
    update_step: Callable[[Any, Any], None]
    coefficients: Mapping[float, Mapping[str, Any]]
    """What the rule made of the step's scalars, by the factor that the learning rate was multiplied with."""
    rate_factors: Sequence[float]
    """Per variable: its factor of the learning rate, a key of `coefficients`."""
    decay_factors: Sequence[Any]
    """Per variable: what weight decay multiplies it with before the update, `1 − weight_decay · lr`; None for none."""
    active: Sequence[Any]
    """Per variable: True, or a bool tensor that says whether it takes part in this step."""
    lazy: Sequence[bool]
    """Per variable: whether rows whose gradient is all zero are left as they are."""
    clip: GradientsClipOption
    ema: EMAOption
    overwrite: Any
    """Whether this step ends with variables overwritten by their averages: a bool, or a bool tensor."""
    loss_scale: Any = None
    """What gradients are divided by first; where one of them is not finite, there is no step. None: neither."""
    jit_compile: bool = False

    def scalars(self, i: int) -> Mapping[str, Any]:
        """The rule's coefficients for variable number `i`."""
        return self.coefficients[self.rate_factors[i]]

    def new_scalars(self) -> dict[str, Any]:
        """State of the whole optimizer after this step, which no learning rate enters."""
        names = self.rule.scalars if self.rule is not None else ()
        return {name: self.scalars(0)[name] for name in names}


def compute_dtype(dtype: tf.DType) -> tf.DType:
    """Dtype in which a variable of `dtype` is updated: at least float32, or 0.999 would round to 1 in bfloat16."""
    return tf.float32 if dtype in (tf.bfloat16, tf.float16) else dtype


def cast_scalars(scalars: Mapping[str, Any], dtype: tf.DType) -> dict[str, Any]:
    """Scalar tensors cast to `dtype`; Python floats stay, TensorFlow rounds them once where they meet a tensor."""
    return {name: tf.cast(value, dtype) if tf.is_tensor(value) else value for name, value in scalars.items()}


def cast_scalar(value: Any, dtype: tf.DType) -> Any:
    return tf.cast(value, dtype) if tf.is_tensor(value) else value


def scaled(gradient: Any, factor: Any) -> Any:
    """A gradient times a scalar, multiplied in `compute_dtype`; float16 stays float32, where it does not underflow."""
    dtype = gradient.dtype
    wide = compute_dtype(dtype)
    product = tf.cast(gradient, wide) * _constant(factor, wide)
    return product if dtype == tf.float16 else tf.cast(product, dtype)


def _constant(value: Any, dtype: tf.DType) -> Any:
    # Not tf.cast of a Python float, which would round it to float32 on the way.
    return tf.cast(value, dtype) if tf.is_tensor(value) else tf.constant(value, dtype)


def averaged(average: Any, value: Any, momentum: float) -> Any:
    """average ← momentum·average + (1 − momentum)·value, computed in `compute_dtype`, in the dtype of `average`."""
    wide = compute_dtype(average.dtype)
    new = momentum * tf.cast(average, wide) + (1.0 - momentum) * tf.cast(value, wide)
    return tf.cast(new, average.dtype)


def updated(
    rule: Rule, variable: Any, gradient: Any, slots: Mapping[str, Any], scalars: Mapping[str, Any], decay: Any
) -> tuple[Any, dict[str, Any]]:
    """New values of a variable and of its slots, each in its own dtype.

    All arrays have one shape and one layout. The update is computed in `compute_dtype` of the variable.
    """
    dtype = variable.dtype
    wide = compute_dtype(dtype)
    value = tf.cast(variable, wide)
    if decay is not None:
        value = value * cast_scalar(decay, wide)
    wide_slots = {name: tf.cast(slot, wide) for name, slot in slots.items()}
    change, new = rule.update(tf, value, tf.cast(gradient, wide), wide_slots, cast_scalars(scalars, wide))
    return tf.cast(value + change, dtype), {name: tf.cast(new[name], slots[name].dtype) for name in new}
