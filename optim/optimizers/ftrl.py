"""The public optimizer Ftrl; its maths and arguments are in `optim/rules/ftrl.py`."""

from __future__ import annotations

from typing import Any

from optim.errors import HyperparameterError
from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.ftrl import FtrlRule


class Ftrl(RuleOptimizer, rule=FtrlRule):
    """FTRL-Proximal (McMahan et al., 2013), for sparse linear models.

    Slots: `accumulator` and `linear`, each shaped like its variable. Every step computes the variable from them: its
      old
    value enters only through the change of `accumulator` and the shrinkage. A step whose learning rate, or a factor of
    it, is 0 raises HyperparameterError.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if 0 in (self.learning_rate_multipliers or {}).values():
            raise HyperparameterError(
                "learning_rate_multipliers: Ftrl divides by the learning rate, no factor can be 0"
            )
