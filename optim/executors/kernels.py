"""TensorFlow's fused kernels for the rules that have one: a shard updated in place, reading and writing memory once.

Each function returns the call of one `ResourceApply*` op on local handles. The kernels' own formulas are in
`tensorflow/core/kernels/training_ops.cc`. Bias corrections and other scalars are computed beforehand in float64, so
Adam's kernel gets beta powers of zero and the corrected learning rate. One difference from the rules' maths remains:
the kernels compute 1 − β₂ and similar terms in the variable's dtype, which for float32 and 0.999 is off by 1.3e-5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from optim.devices import Call
from optim.rule import Rule
from optim.rules.adadelta import AdadeltaRule
from optim.rules.adagrad import AdagradRule
from optim.rules.adam import AdamRule
from optim.rules.adamax import AdamaxRule
from optim.rules.ftrl import FtrlRule
from optim.rules.powers import MULTIPLIED
from optim.rules.rmsprop import RMSpropRule
from optim.rules.sgd import SGDRule

DTYPES = (tf.float32, tf.float64)
Kernel = Callable[[Any, Any, Mapping[str, Any], Any, Mapping[str, Any]], Call]


def _sgd(rule: Any, variable: Any, slots: Mapping[str, Any], gradient: Any, c: Mapping[str, Any]) -> Call:
    if not rule.keeps_momentum:
        return ("ResourceApplyGradientDescent", variable, c["lr"], gradient, "use_locking", False)
    options = ("use_locking", False, "use_nesterov", rule.nesterov)
    op = "ResourceApplyKerasMomentum" if rule.learning_rate_in_momentum else "ResourceApplyMomentum"
    return (op, variable, slots["m"], c["lr"], gradient, c["momentum"], *options)


def _adam(rule: Any, variable: Any, slots: Mapping[str, Any], gradient: Any, c: Mapping[str, Any]) -> Call:
    scalars = (c["zero"], c["zero"], c["alpha"], c["beta_1"], c["beta_2"], c["epsilon"])
    if rule.amsgrad:
        state = (slots["m"], slots["v"], slots["vhat"])
        return ("ResourceApplyAdamWithAmsgrad", variable, *state, *scalars, gradient, "use_locking", False)
    options = ("use_locking", False, "use_nesterov", rule.nesterov)
    return ("ResourceApplyAdam", variable, slots["m"], slots["v"], *scalars, gradient, *options)


def _adadelta(rule: Any, variable: Any, slots: Mapping[str, Any], gradient: Any, c: Mapping[str, Any]) -> Call:
    state = (slots["accumulated_grad"], slots["accumulated_delta_var"])
    scalars = (c["lr"], c["rho"], c["epsilon"])
    return ("ResourceApplyAdadelta", variable, *state, *scalars, gradient, "use_locking", False)


def _adagrad(rule: Any, variable: Any, slots: Mapping[str, Any], gradient: Any, c: Mapping[str, Any]) -> Call:
    options = ("use_locking", False, "update_slots", True)
    return ("ResourceApplyAdagradV2", variable, slots["accumulator"], c["lr"], c["epsilon"], gradient, *options)


def _adamax(rule: Any, variable: Any, slots: Mapping[str, Any], gradient: Any, c: Mapping[str, Any]) -> Call:
    scalars = (c["zero"], c["alpha"], c["beta_1"], c["beta_2"], c["epsilon"])
    return ("ResourceApplyAdaMax", variable, slots["m"], slots["u"], *scalars, gradient, "use_locking", False)


def _rmsprop(rule: Any, variable: Any, slots: Mapping[str, Any], gradient: Any, c: Mapping[str, Any]) -> Call:
    state = (slots["velocity"], slots["momentum"])
    scalars = (c["lr"], c["rho"], c["momentum"], c["epsilon"])
    return ("ResourceApplyRMSProp", variable, *state, *scalars, gradient, "use_locking", False)


def _ftrl(rule: Any, variable: Any, slots: Mapping[str, Any], gradient: Any, c: Mapping[str, Any]) -> Call:
    state = (slots["accumulator"], slots["linear"])
    scalars = (c["lr"], c["l1"], c["l2"], c["shrinkage"], c["power"])
    options = ("use_locking", False, "multiply_linear_by_lr", rule.learning_rate_in_linear)
    return ("ResourceApplyFtrlV2", variable, *state, gradient, *scalars, *options)


def _has_rmsprop_formula(rule: Any) -> bool:
    """The kernel has a momentum slot, ε inside the root, and no guard of a centered variance against rounding."""
    inside = rule.epsilon_inside and rule.learning_rate_in_momentum
    return rule.keeps_momentum and inside and not rule.centered


def _has_adams_formula(rule: Any) -> bool:
    """The kernel of AMSGrad has no Nesterov momentum; without bias correction, 1 − β must be exact, too."""
    return _rounds_as_the_kernel(rule) and rule.bias_correction and not (rule.amsgrad and rule.nesterov)


def _rounds_as_the_kernel(rule: Any) -> bool:
    """The kernels compute 1 − β in the variable's dtype. A rule that rounds only the powers needs an exact 1 − β."""
    return rule.float32_powers in (False, MULTIPLIED)


KERNELS: Mapping[type, tuple[Kernel, Callable[[Any], bool]]] = {
    SGDRule: (_sgd, lambda rule: True),
    RMSpropRule: (_rmsprop, _has_rmsprop_formula),
    AdagradRule: (_adagrad, lambda rule: not rule.epsilon_inside),
    AdadeltaRule: (_adadelta, lambda rule: not rule.new_delta_in_step),
    AdamRule: (_adam, _has_adams_formula),
    AdamaxRule: (_adamax, _rounds_as_the_kernel),
    FtrlRule: (_ftrl, lambda rule: True),
}
"""By class of rule: its kernel, and for which of its variants the kernel computes the rule's formula."""


def kernel_for(rule: Rule, dtype: tf.DType) -> Kernel | None:
    """Return the fused kernel of a rule for variables of `dtype`, None if TensorFlow lacks it."""
    kernel, fits = KERNELS.get(type(rule), (None, None))
    return kernel if dtype in DTYPES and fits is not None and fits(rule) else None
