"""The public optimizer COCOB; its maths and arguments are in `optim/rules/cocob.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.cocob import COCOBRule


class COCOB(RuleOptimizer, rule=COCOBRule):
    """COCOB-Backprop (Orabona & Tommasi, 2017), which sizes its steps by betting and needs no learning rate.

    Slots: `largest_gradient`, `gradient_norm_sum`, `gradient_sum`, `bet`, `reward`, each shaped like its variable.
    Arguments and steps as `tfa.optimizers.COCOB`.
    """
