"""The public optimizer Lamb; its maths and arguments are in `optim/rules/lamb.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.lamb import LambRule


class Lamb(RuleOptimizer, rule=LambRule):
    """LAMB (You et al., 2020): Adam's step of each variable, scaled to the norm of the variable.

    Slots: `m` and `v`, each shaped like its variable. Norms are those of the whole variable, however it is sharded. The
      rule
    does not support `lazy_rows`.
    """
