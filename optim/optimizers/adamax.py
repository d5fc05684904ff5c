"""The public optimizer Adamax; its maths and arguments are in `optim/rules/adamax.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.adamax import AdamaxRule


class Adamax(RuleOptimizer, rule=AdamaxRule):
    """Adamax (Kingma & Ba, 2015, section 7.1): Adam with a decaying maximum in place of the second moment.

    Slots: `m` and `u`, each shaped like its variable. OptimizerV2 calls `u` `v`, Keras 3 `norm`.
    """
