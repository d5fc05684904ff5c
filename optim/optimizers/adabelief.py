"""The public optimizer AdaBelief; its maths and arguments are in `optim/rules/adabelief.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import Option, RuleOptimizer
from optim.rules.adabelief import AdaBeliefRule


class AdaBelief(
    RuleOptimizer,
    rule=AdaBeliefRule,
    options={"weight_decay": Option(0.0, "λ; see `Optimizer`")},
    positional=("learning_rate", "beta_1", "beta_2", "epsilon", "weight_decay"),
):
    """AdaBelief (Zhuang et al., 2020): Adam that divides by how far gradients are from their mean.

    Slots: `m`, `v`, and `vhat` with `amsgrad`, each shaped like its variable. Arguments and steps as
    `tfa.optimizers.AdaBelief`.
    """
