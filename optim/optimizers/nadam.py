"""The public optimizer Nadam; its maths and arguments are in `optim/rules/nadam.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.nadam import NadamRule


class Nadam(RuleOptimizer, rule=NadamRule):
    """Nadam (Dozat, 2015): Adam with Nesterov's momentum on a warming schedule.

    Slots: `m` and `v`, each shaped like its variable; and for the whole optimizer the float64 scalar `u_product`, the
    product of the schedule's values μ_1 ... μ_t so far.
    """
