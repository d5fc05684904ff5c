"""The public optimizer Yogi; its maths and arguments are in `optim/rules/yogi.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.yogi import YogiRule


class Yogi(RuleOptimizer, rule=YogiRule):
    """Yogi (Zaheer et al., 2018): Adam whose second moment changes slowly, also downwards.

    Slots: `v` and `m`, each shaped like its variable. Arguments and steps as `tfa.optimizers.Yogi`, whose `beta1` and
    `beta2` are `beta_1` and `beta_2` here.
    """
