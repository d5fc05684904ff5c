"""The public optimizer ConditionalGradient; its maths and arguments are in `optim/rules/conditional_gradient.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.conditional_gradient import ConditionalGradientRule


class ConditionalGradient(RuleOptimizer, rule=ConditionalGradientRule):
    """Conditional gradient, or Frank-Wolfe (Ravi et al., 2018): weights stay in a ball of a norm.

    It keeps no slots. Arguments and steps as `tfa.optimizers.ConditionalGradient`. A learning rate near 1 is a small
    step.
    """
