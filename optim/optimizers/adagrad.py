"""The public optimizer Adagrad; its maths and arguments are in `optim/rules/adagrad.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.adagrad import AdagradRule


class Adagrad(RuleOptimizer, rule=AdagradRule):
    """Adagrad (Duchi et al., 2011).

    Slots: `accumulator`, shaped like its variable.
    """
