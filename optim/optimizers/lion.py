"""The public optimizer Lion; its maths and arguments are in `optim/rules/lion.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.lion import LionRule


class Lion(RuleOptimizer, rule=LionRule):
    """Lion (Chen et al., 2023): steps of one size, in the direction of the sign of a momentum.

    Slots: `m`, shaped like its variable. A good learning rate is 3 to 10 times smaller than that of AdamW, a good
    `weight_decay` as many times larger.
    """
