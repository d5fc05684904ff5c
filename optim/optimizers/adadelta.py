"""The public optimizer Adadelta; its maths and arguments are in `optim/rules/adadelta.py`."""

from __future__ import annotations

from typing import Any

from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.adadelta import AdadeltaRule


class Adadelta(RuleOptimizer, rule=AdadeltaRule):
    """Adadelta (Zeiler, 2012).

    Slots: `accumulated_grad` and `accumulated_delta_var`, each shaped like its variable.
    """

    def update_step(self, grad: Any, variable: Any) -> None:
        """See `Optimizer.update_step`; Keras 2.9 calls the first argument `grad` here."""
        super().update_step(grad, variable)
