"""The input of both executors for one step, and the maths that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from optim.algorithm import Group
from optim.errors import MismatchError
from optim.executors.gradient_metadata import Slices
from optim.layouts.cached_functions import unfolded
from optim.namespace import XP
from optim.native.direct import Held
from optim.options.option_objects import GradientsClipOption
from optim.precision import cast_scalar, cast_scalars, compute_dtype, constant
from optim.rule import Rule
from optim.state.row_gradient import RowGradient
from optim.state.slots import SlotTable
from optim.state.tracked import Tracked
from optim.summed_gradients import NamespaceOfSums, SummedGradient, summed

EACH_XP = NamespaceOfSums(XP)


@dataclass(frozen=True)
class Work:
    """One real step: dense gradients in, variables and slots updated.

    Scalars are Python floats eagerly and float64 tensors inside a `tf.function`.
    """

    tracked: Sequence[Tracked]
    gradients: Sequence[Any]
    slots: SlotTable
    rules: Sequence[Rule | None]
    """Per variable: the rule that updates it; all None if a subclass has its own `update_step`."""
    update_step: Callable[[Any, Any], None]
    coefficients: Mapping[Group, Mapping[str, Any]]
    """The rule's coefficients from the step's scalars, for each group of variables."""
    rate_factors: Sequence[Group]
    """Per variable: its key in `coefficients`."""
    decay_factors: Sequence[Any]
    """Per variable: the factor of weight decay before the update, `1 − weight_decay · lr`; None without decay."""
    active: Sequence[Any]
    """Per variable: whether it takes part in this step, True or a bool tensor."""
    lazy: Sequence[bool]
    """Per variable: whether rows without a gradient stay unchanged."""
    clip: GradientsClipOption
    has_averages: bool
    ema_momentum: Any
    """μ of average ← μ·average + (1 − μ)·variable in this step, 1 if averages stay: a float, or a float64 tensor."""
    overwrite: Any
    """Whether this step ends with variables overwritten by their averages: a bool, or a bool tensor."""
    loss_scale: Any = None
    """Divisor of gradients; if one of them is not finite, there is no step. None: no division and no check."""
    jit_compile: bool = False
    only_ops: bool = False
    """`executor="portable"`: dtopt's own kernel is not used in functions either."""
    slices: Sequence[Slices | None] = ()
    """Per variable: the slices of its gradient, if each is squared separately, or None. Empty: all None."""
    named: Sequence[Any] = ()
    """Per lazy variable: the rows that have a gradient, even if it is zero, if a dense gradient does not show them, or
    None. Empty: all None.
    """
    held_tensors: Held | None = None
    """All gradients, if dtopt's own kernel has them already."""
    key: Any = None
    """Of the noise of stochastic rounding in this step: an int, or a uint32 tensor; None without it."""
    control: Any = None
    """In a function, on a GPU: the result of `one_op.control` there, instead of numbers of the host."""

    @property
    def has_rules(self) -> bool:
        """Whether rules update the variables, and not the `update_step` of a subclass."""
        return not self.rules or self.rules[0] is not None

    def rule(self, i: int) -> Rule:
        """Return the rule of variable number `i`, if rules update."""
        rule = self.rules[i]
        assert rule is not None
        return rule

    def slices_of(self, i: int) -> Slices | None:
        """Return the slices of variable number `i`, if each is squared separately."""
        return self.slices[i] if self.slices else None

    def needs_metadata(self, i: int) -> bool:
        """Whether the step of variable number `i` needs more than a dense gradient."""
        if self.named and self.named[i] is not None:
            return True
        return self.slices_of(i) is not None and not isinstance(self.gradients[i], RowGradient)

    def only(self, members: Sequence[int]) -> Work:
        """Return the step of only these variables."""
        return replace(
            self,
            tracked=[self.tracked[i] for i in members],
            gradients=[self.gradients[i] for i in members],
            rules=[self.rules[i] for i in members],
            rate_factors=[self.rate_factors[i] for i in members],
            decay_factors=[self.decay_factors[i] for i in members],
            active=[self.active[i] for i in members],
            lazy=[self.lazy[i] for i in members],
            slices=[self.slices[i] for i in members] if self.slices else (),
            named=[self.named[i] for i in members] if self.named else (),
            held_tensors=None,
        )

    def scalars(self, i: int) -> Mapping[str, Any]:
        """Return the rule's coefficients for variable number `i`."""
        return self.coefficients[self.rate_factors[i]]


def scaled(gradient: Any, factor: Any) -> Any:
    """Multiply a gradient by a scalar in `compute_dtype`; float16 stays float32, which does not underflow."""
    return unfolded(_scaled, gradient, factor if tf.is_tensor(factor) else constant(factor, tf.float64))


def _scaled(gradient: Any, factor: Any) -> Any:
    dtype = gradient.dtype
    wide = compute_dtype(dtype)
    product = tf.cast(gradient, wide) * tf.cast(factor, wide)
    return product if dtype == tf.float16 else tf.cast(product, dtype)


def _constant(value: Any, dtype: tf.DType) -> Any:
    # Not tf.cast of a Python float, which would round it to float32 on the way.
    return tf.cast(value, dtype) if tf.is_tensor(value) else constant(value, dtype)


def averaged(average: Any, value: Any, momentum: Any) -> Any:
    """Return average ← momentum·average + (1 − momentum)·value, computed in `compute_dtype`, in the dtype of
    `average`."""
    wide = compute_dtype(average.dtype)
    old, share = _constant(momentum, wide), _constant(1.0 - momentum, wide)
    new = old * tf.cast(average, wide) + share * tf.cast(value, wide)
    return tf.cast(new, average.dtype)


def updated(
    rule: Rule, variable: Any, gradient: Any, slots: Mapping[str, Any], scalars: Mapping[str, Any], decay: Any
) -> tuple[Any, dict[str, Any]]:
    """Return the new values of a variable and of its slots, each in its own dtype.

    All arrays have one shape and one layout, and the gradient may be `SummedGradient` of several. The update is
    computed in `compute_dtype` of the variable.

    Raises MismatchError: the variable is complex, and the rule needs real numbers.
    """
    dtype = variable.dtype
    wide = compute_dtype(dtype)
    value = tf.cast(variable, wide)
    if decay is not None:
        value = value * cast_scalar(decay, wide)
    wide_slots = {name: tf.cast(slot, wide) for name, slot in slots.items()}
    is_each = isinstance(gradient, SummedGradient)
    wide_gradient = gradient.map(lambda x: tf.cast(x, wide)) if is_each else tf.cast(gradient, wide)
    xp, c = EACH_XP if is_each else XP, cast_scalars(scalars, wide)
    try:
        change, new = rule.update(xp, value, wide_gradient, wide_slots, c)
    except (TypeError, tf.errors.InvalidArgumentError) as error:
        if not dtype.is_complex:
            raise
        raise MismatchError(
            f"{type(rule).__name__} cannot step {dtype.name} variables, because it compares numbers. Give complex ones"
            " another optimizer, such as SGD"
        ) from error
    return tf.cast(value + summed(change), dtype), {n: tf.cast(summed(new[n]), slots[n].dtype) for n in new}
