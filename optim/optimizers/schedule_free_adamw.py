"""The public optimizer ScheduleFreeAdamW; its maths and arguments are in `optim/rules/schedule_free_adamw.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optim import lazy
from optim.optimizers.of_rule import RuleOptimizer
from optim.precision import cast_scalar
from optim.rules.schedule_free_adamw import ScheduleFreeAdamWRule

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazy.modules("tensorflow")


class ScheduleFreeAdamW(RuleOptimizer, rule=ScheduleFreeAdamWRule):
    """Schedule-Free AdamW (Defazio et al., 2024): Adam that needs no schedule, because it averages its steps.

    Slots: `z`, to which the steps apply, and `v`, each shaped like its variable; and for the whole optimizer the
      float64
    scalars `weight_sum` and `largest_rate`. The variables contain the point of the gradients; evaluate at `average_of`.
    Weight decay is added to the direction of a step, as in facebookresearch's code.
    """

    def average_of(self, variable: Any) -> tf.Tensor:
        """Return the average x of a variable's steps, at which a model is evaluated: like the variable, in its layout.

        Raises:
          UnknownVariableError: the optimizer was not built on it.
        """
        y = self._state.tracked[variable].variable
        z = tf.cast(self.get_slot(variable, "z").read_value(), y.dtype)
        beta_1 = cast_scalar(tf.constant(self._hyper.config()["beta_1"], tf.float64), y.dtype)
        return (y.read_value() - (1 - beta_1) * z) / beta_1
