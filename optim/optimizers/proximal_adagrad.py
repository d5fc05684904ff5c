"""The public optimizer ProximalAdagrad; its maths and arguments are in `optim/rules/proximal_adagrad.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.proximal_adagrad import ProximalAdagradRule


class ProximalAdagrad(RuleOptimizer, rule=ProximalAdagradRule):
    """Adagrad with a proximal step (Duchi & Singer, 2009), which makes numbers exactly zero.

    Slots: `accumulator`, shaped like its variable. Arguments and steps as `tfa.optimizers.ProximalAdagrad`.
    """
