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
    coefficients: Mapping[str, Any]
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
    jit_compile: bool = False


def compute_dtype(dtype: tf.DType) -> tf.DType:
    """Dtype in which a variable of `dtype` is updated: at least float32, or 0.999 would round to 1 in bfloat16."""
    return tf.float32 if dtype in (tf.bfloat16, tf.float16) else dtype


def cast_scalars(scalars: Mapping[str, Any], dtype: tf.DType) -> dict[str, Any]:
    """Scalar tensors cast to `dtype`; Python floats stay, TensorFlow rounds them once where they meet a tensor."""
    return {name: tf.cast(value, dtype) if tf.is_tensor(value) else value for name, value in scalars.items()}


def cast_scalar(value: Any, dtype: tf.DType) -> Any:
    return tf.cast(value, dtype) if tf.is_tensor(value) else value


def averaged(average: Any, value: Any, momentum: float, dtype: tf.DType) -> Any:
    """average ← momentum·average + (1 − momentum)·value, computed in `compute_dtype`."""
    wide = compute_dtype(dtype)
    new = momentum * tf.cast(average, wide) + (1.0 - momentum) * tf.cast(value, wide)
    return tf.cast(new, dtype)


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
