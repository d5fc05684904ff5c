"""The public optimizer Adam; its maths and arguments are in `optim/rules/adam.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.adam import AdamRule


class Adam(RuleOptimizer, rule=AdamRule):
    """Adam (Kingma & Ba, 2015), or AMSGrad (Reddi et al., 2018).

    Slots: `m`, `v`, and `vhat` with `amsgrad`, each shaped like its variable.
    """
