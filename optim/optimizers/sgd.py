"""The public optimizer SGD; its maths and arguments are in `optim/rules/sgd.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.sgd import SGDRule


class SGD(RuleOptimizer, rule=SGDRule):
    """Gradient descent, optionally with momentum (Sutskever et al., 2013).

    Slots: `m`, shaped like its variable, if there is momentum; by default it includes the learning rate.
    """
