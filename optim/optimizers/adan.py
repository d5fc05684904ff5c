"""The public optimizer Adan; its maths and arguments are in `optim/rules/adan.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.adan import AdanRule


class Adan(RuleOptimizer, rule=AdanRule):
    """Adan (Xie et al., 2022): Nesterov's momentum from the differences of gradients.

    Slots: `m`, `v`, `n` and `previous_gradient`, each shaped like its variable.
    """
